# SPDX-License-Identifier: Apache-2.0
# Writes OUT, a C file with the text of each of FILES under its name (formats/job/job.h). One string literal per line:
# C promises 4095 characters in one only after joining, and compilers take far more.
set(body "")
foreach(file IN LISTS FILES)
	get_filename_component(name ${file} NAME_WE)
	file(READ ${file} text)
	string(REPLACE "\\" "\\\\" text "${text}")
	string(REPLACE "\"" "\\\"" text "${text}")
	string(REPLACE "\n" "\\n\"\n\t  \"" text "${text}")
	string(APPEND body "\t{ \"${name}\",\n\t  \"${text}\" },\n")
endforeach()
file(WRITE ${OUT} "/* Made by formats/job/rule_sets.cmake from deploy/rules. */
#include \"formats/job/job.h\"

#pragma GCC diagnostic ignored \"-Woverlength-strings\"

const struct ptc_rule_set ptc_rule_sets[] = {
${body}\t{ NULL, NULL },
};
")
