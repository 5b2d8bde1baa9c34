"""Jobs: taken in, cancelled, ended, tried again, buried."""
