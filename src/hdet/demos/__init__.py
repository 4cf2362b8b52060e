"""What a newcomer runs first: two demos, and the doctor, which tries the machine. Leaves: they import the
library and rich, and nothing imports them but the command line."""
