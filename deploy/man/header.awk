# SPDX-License-Identifier: Apache-2.0
# A public header as roff: comments in column 0 are text, their indented lines and all declarations are code, a comment with dashes
# is a section, a line after "- " an item of a list. So a page says what the header says. -v name=, about=, version=, api= (what marks functions), names= (of functions).
function plain(s) {
	gsub(/\\/, "\\e", s)
	gsub(/-/, "\\-", s)
	return s
}
function put(s) { # a line, which must not be a request
	s = plain(s)
	print (s ~ /^[.']/ ? "\\&" : "") s
}
function as_code(on) {
	if (on != code)
		print on ? ".PP\n.RS 4\n.nf" : ".fi\n.RE"
	code = on
}
function comment_line(s) {
	sub(/^ ?\*\/.*/, "", s)
	sub(/[ ]*\*\/[ ]*$/, "", s)
	sub(/^ \*( |$)/, "", s)
	if (s ~ /^   /) {
		as_code(1)
		put(substr(s, 5))
	} else if (s == "") {
		as_code(0)
		print ".PP"
	} else {
		as_code(0)
		if (s ~ /^- /)
			print ".IP \\(bu 2"
		else if (s ~ /^[A-Z][a-z]+: /)
			print ".PP"
		sub(/^(- |  )/, "", s)
		put(s)
	}
}
BEGIN {
	printf ".TH %s 3 \"\" \"ptc %s\" \"ptc\"\n.nh\n.SH NAME\n%s%s \\- %s\n", toupper(plain(name)), version, plain(name), plain(names), plain(about)
	printf ".SH SYNOPSIS\n.nf\n#include <%s>\n.fi\n.SH DESCRIPTION\n", include
}
/SPDX-License/ { next }
/^\/\* ----/ {
	as_code(0)
	sub(/^\/\* -+ /, "")
	sub(/ -+ \*\/$/, "")
	print ".SH " toupper(plain($0))
	next
}
/^\/\*/ && !comment {
	as_code(0)
	print ".PP"
	comment = $0 !~ /\*\//
	sub(/^\/\* /, "")
	comment_line($0)
	next
}
comment {
	comment = $0 !~ /\*\//
	comment_line($0)
	next
}
/^#(ifndef|ifdef|endif|include|pragma)/ || /^#define [A-Z_]+_H$/ || /^extern "C"/ || /^}$/ { next }
/^$/ { next }
{
	as_code(1)
	sub("^" api " ", "")
	put($0)
}
END { as_code(0) }
