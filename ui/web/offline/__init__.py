"""Pages in files, which need no server: a match, and a whole league.

- ``elements``    HTML elements, tables and whole documents; all texts are escaped
- ``match_page``  one match with its maps or its transcript, for ``league match show -o`` and the match page's download
- ``league_site`` a league with its agents and matches, for ``league site``; ``site_folder``: its folder

Each file holds its styles and its script, and its content security policy permits these two and nothing else.
"""
