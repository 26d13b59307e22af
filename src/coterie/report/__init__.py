"""What runs came to, for people: tables, runs compared, progress, pictures. Commands print what is made here (cli)."""
