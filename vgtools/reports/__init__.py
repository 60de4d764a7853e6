"""Output for people: pages, contact sheets, figures and tables of measurements."""
