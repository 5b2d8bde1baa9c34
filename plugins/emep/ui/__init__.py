"""EMEP's pages for people, as HTML made on the server. Every text on them is escaped; nothing is loaded
from another host."""
