/* SPDX-License-Identifier: Apache-2.0 */
/* Certificates for tests and benchmarks, made with the openssl tool in a private directory. Test code only: it aborts
 * on failure. */
#pragma once

#include "base/check.h"

#include <stdio.h>
#include <stdlib.h>

__attribute__((format(printf, 1, 2))) static inline void test_sh(const char *fmt, ...)
{
	char cmd[4096];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(cmd, sizeof cmd, fmt, ap);
	va_end(ap);
	ptc_require(system(cmd) == 0);
}

/* Makes DIR/NAME.crt and .key: a CA that signs itself. */
static inline void test_ca(const char *dir, const char *name)
{
	test_sh("cd '%s' && openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 "
		"-subj '/CN=%s' -keyout %s.key -out %s.crt 2>/dev/null",
		dir, name, name, name);
}

/* Makes DIR/NAME.crl: the list of certificates that CA has revoked. `which` names them, with spaces between; may be "".
 */
static inline void test_crl(const char *dir, const char *ca, const char *name, const char *which)
{
	test_sh("cd '%s' && rm -f %s.index* && : >%s.index && "
		"printf '[ca]\ndefault_ca=c\n[c]\ndatabase=%s.index\ndefault_md=sha256\ndefault_crl_days=2\n' >%s.cnf "
		"&& "
		"for c in %s; do openssl ca -config %s.cnf -cert %s.crt -keyfile %s.key -revoke $c.crt 2>/dev/null; "
		"done && "
		"openssl ca -config %s.cnf -cert %s.crt -keyfile %s.key -gencrl -out %s.new 2>/dev/null && mv %s.new "
		"%s.crl",
		dir, name, name, name, name, which, name, ca, ca, name, ca, ca, name, name, name);
}

/* Makes DIR/NAME.crt and .key, signed by CA. `san` e.g. "URI:ptc://node/n1,DNS:localhost". days < 0: expired. */
static inline void test_cert(const char *dir, const char *ca, const char *name, const char *san, int days)
{
	test_sh("cd '%s' && printf 'subjectAltName=%s\\nextendedKeyUsage=serverAuth,clientAuth\\n' > %s.ext && "
		"openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj '/CN=%s' -keyout %s.key -out "
		"%s.csr "
		"2>/dev/null && "
		"openssl x509 -req -in %s.csr -CA %s.crt -CAkey %s.key -CAcreateserial -days %d -extfile %s.ext -out "
		"%s.crt "
		"2>/dev/null",
		dir, san, name, name, name, name, name, ca, ca, days, name, name);
}
