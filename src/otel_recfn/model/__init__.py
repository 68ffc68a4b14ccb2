"""The model of an event: scopes, kinds, flags, columns, time and errors. It is open to every layer and imports none of them."""
