"""Where tools may reach: the files they see, and the commands they run."""
