"""What people look at: pages, contact sheets, figures and tables of what was measured."""
