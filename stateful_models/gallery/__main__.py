"""Writes the page of the gallery."""

from stateful_models.gallery.table import page

if __name__ == "__main__":
    print(page(), end="")
