"""Code that the SQL back ends share: the tables, and a module of functions for each kind of record."""
