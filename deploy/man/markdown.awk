# SPDX-License-Identifier: Apache-2.0
# As much of Markdown as docs/ uses, as roff: headings, paragraphs, lists, tables, code. -v name=, section=, about=, version=.
function plain(s) {
	gsub(/\\/, "\\e", s)
	gsub(/-/, "\\-", s)
	return s
}
function inline(s,    out, i, n, part) {
	s = plain(s)
	while (match(s, /\[[^]]*\]\([^)]*\)/)) { # a link is its text
		part = substr(s, RSTART, RLENGTH)
		sub(/^\[/, "", part)
		sub(/\]\(.*/, "", part)
		s = substr(s, 1, RSTART - 1) part substr(s, RSTART + RLENGTH)
	}
	gsub(/\*\*/, "\001", s)
	n = split(s, i, "`")
	out = i[1]
	for (part = 2; part <= n; part++)
		out = out (part % 2 == 0 ? "\\fB" : "\\fR") i[part]
	n = split(out, i, "\001")
	out = i[1]
	for (part = 2; part <= n; part++)
		out = out (part % 2 == 0 ? "\\fI" : "\\fR") i[part]
	return out
}
function text(s) { # a line of it, which must not be a request; inline code may go on on the next line
	s = inline(held s)
	held = ""
	print (s ~ /^[.']/ ? "\\&" : "") s
}
BEGIN {
	printf ".TH %s %s \"\" \"ptc %s\" \"ptc\"\n.SH NAME\n%s \\- %s\n.SH DESCRIPTION\n", toupper(name), section, version, name, about
}
/^```/ {
	print code ? ".fi\n.RE" : ".RS 4\n.nf"
	code = !code
	next
}
code {
	$0 = plain($0)
	print (/^[.']/ ? "\\&" : "") $0
	next
}
/^# / { next }
/^## / { print ".SH " toupper(plain(substr($0, 4))); next }
/^### / { print ".SS " plain(substr($0, 5)); next }
/^\|[ :|-]*$/ { next }
/^\|/ {
	n = split(substr($0, 2), cell, /[ ]*\|[ ]*/)
	print ".TP"
	text(cell[1] == "" ? "\\&" : cell[1])
	line = ""
	for (k = 2; k < n; k++)
		line = line (k > 2 ? "; " : "") cell[k]
	text(line)
	next
}
/^[ ]*$/ { print ".PP"; next }
/^[ ]*[-*] / {
	sub(/^[ ]*[-*] /, "")
	print ".IP \\(bu 2"
}
{
	sub(/^[ ]+/, "")
	# code or emphasis that goes on is joined with the next line
	copy = held $0
	if (gsub(/`/, "`", copy) % 2 || gsub(/\*\*/, "**", copy) % 2) {
		held = held $0 " "
		next
	}
	text($0)
}
