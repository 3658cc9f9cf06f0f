"""The utility processors; ``diarist.processors`` exports them by name and loads each when it is used."""
