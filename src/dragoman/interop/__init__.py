"""Models in the formats of other programs: importers read them, exporters write them."""
