"""All broken managers, and the clause that each of them must trip.

They only override public calls, and otherwise are the reference.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kvoffload import CPUOffloadingManager
from stateful_models.gallery.completions import (
    Done1ForgetsTheLast,
    Done2FailureIsReadable,
    Done3RaisesWhenNotPending,
    Done4IgnoresTickets,
    Fin2SeesAfterFinish,
    Gen1KeepsEverything,
    Gen2CompletesOldStores,
)
from stateful_models.gallery.loads import (
    Load1LeavesPins,
    Load2SwapsSlots,
    Load3ReleasesAtSubmit,
    Load4ForgivesReleases,
    Look1PendingIsHit,
    Pin1NeverReleases,
)
from stateful_models.gallery.reports import (
    Evt1AnnouncesAtPrepare,
    Evt1NoRemovals,
    Evt2EmptyEvents,
    Evt2RemovalsFirst,
    Evt5SilentReset,
    Met1GaugeDrifts,
    Met2CountsFromTheStart,
)
from stateful_models.gallery.stores import (
    Slot1CountsFromOne,
    Store1StoresRepetitions,
    Store2StoresAgain,
    Store3AdmitsAtOnce,
    Store4EvictsTooMany,
    Store4RefusesToEvict,
    Store5EvictsTheOffer,
    Store7SlotTwice,
    Store9RefusesNothing,
)

__all__ = [
    "BREAKS",
    "Done1ForgetsTheLast",
    "Done2FailureIsReadable",
    "Done3RaisesWhenNotPending",
    "Done4IgnoresTickets",
    "Evt1AnnouncesAtPrepare",
    "Evt1NoRemovals",
    "Evt2EmptyEvents",
    "Evt2RemovalsFirst",
    "Evt5SilentReset",
    "Fin2SeesAfterFinish",
    "Gen1KeepsEverything",
    "Gen2CompletesOldStores",
    "Load1LeavesPins",
    "Load2SwapsSlots",
    "Load3ReleasesAtSubmit",
    "Load4ForgivesReleases",
    "Look1PendingIsHit",
    "Met1GaugeDrifts",
    "Met2CountsFromTheStart",
    "Pin1NeverReleases",
    "Slot1CountsFromOne",
    "Store1StoresRepetitions",
    "Store2StoresAgain",
    "Store3AdmitsAtOnce",
    "Store4EvictsTooMany",
    "Store4RefusesToEvict",
    "Store5EvictsTheOffer",
    "Store7SlotTwice",
    "Store9RefusesNothing",
]

BREAKS: Final[Mapping[type[CPUOffloadingManager], str]] = {
    Load1LeavesPins: "LOAD-1",
    Load2SwapsSlots: "LOAD-2",
    Load3ReleasesAtSubmit: "LOAD-3",
    Load4ForgivesReleases: "LOAD-4",
    Pin1NeverReleases: "PIN-1",
    Look1PendingIsHit: "LOOK-1",
    Store1StoresRepetitions: "STORE-1",
    Store2StoresAgain: "STORE-2",
    Store3AdmitsAtOnce: "STORE-3",
    Store4EvictsTooMany: "STORE-4",
    Store4RefusesToEvict: "STORE-4",
    Store5EvictsTheOffer: "STORE-5",
    Store7SlotTwice: "STORE-7",
    Slot1CountsFromOne: "SLOT-1",
    Store9RefusesNothing: "STORE-9",
    Done1ForgetsTheLast: "DONE-1",
    Done2FailureIsReadable: "DONE-2",
    Done3RaisesWhenNotPending: "DONE-3",
    Done4IgnoresTickets: "DONE-4",
    Gen1KeepsEverything: "GEN-1",
    Gen2CompletesOldStores: "GEN-2",
    Fin2SeesAfterFinish: "FIN-2",
    Evt1NoRemovals: "EVT-1",
    Evt1AnnouncesAtPrepare: "EVT-1",
    Evt2RemovalsFirst: "EVT-2",
    Evt2EmptyEvents: "EVT-2",
    Evt5SilentReset: "EVT-5",
    Met1GaugeDrifts: "MET-1",
    Met2CountsFromTheStart: "MET-2",
}
"""The clause that each of these breaks."""
