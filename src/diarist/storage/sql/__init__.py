"""The SQL back ends' common part: tables, and one file of functions over a connection per kind of record."""
