"""What an event is: scopes, kinds, flags, columns, time and errors. Open to every layer, imports none of them."""
