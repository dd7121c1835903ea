"""Tables: how columns are read, coded and cut."""
