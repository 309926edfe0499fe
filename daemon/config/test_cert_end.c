/* SPDX-License-Identifier: Apache-2.0 */
/* The end that is told is that of the certificate in use, whatever its file holds by now. */
#include "base/sys/sys.h"
#include "daemon/config/cert_end.h"
#include "rpc/test_certs.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define DAY_MS INT64_C(86400000)

static char dir[] = "/tmp/ptc-test-cert-end-XXXXXX", cert[64], etcd_cert[64];
static struct ptc_daemon_config config = { .tls = { .cert = cert }, .coordinator.tls.cert = etcd_cert };

/* What a look writes to the log. */
static const char *looked(void)
{
	static char text[4096];
	char path[64];
	int fd, was = dup(STDERR_FILENO);
	ssize_t n;

	snprintf(path, sizeof path, "%s/log", dir);
	fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
	assert_true(fd >= 0 && was >= 0);
	assert_int_equal(dup2(fd, STDERR_FILENO), STDERR_FILENO);
	ptc_cert_end_look(&config);
	fflush(stderr);
	assert_int_equal(dup2(was, STDERR_FILENO), STDERR_FILENO);
	n = pread(fd, text, sizeof text - 1, 0);
	assert_true(n >= 0);
	text[n] = '\0';
	close(fd);
	close(was);
	return text;
}

static void assert_days(int days)
{
	const int64_t left = ptc_cert_end_ms() - ptc_sys_realtime_ms();

	assert_true(left > (days - 1) * DAY_MS && left <= days * DAY_MS);
}

static void put(const char *name, int days)
{
	test_cert(dir, "ca", name, "URI:ptc://node/n1", days);
}

static void only_what_is_in_use_counts(void **state)
{
	(void)state;
	assert_int_equal(ptc_cert_end_ms(), 0);
	assert_string_equal(looked(), "");
	put("n1", 4);
	put("etcd", 300);
	ptc_cert_end_taken(&config);
	assert_days(4);
	assert_non_null(strstr(looked(), "n1.crt ends in 3 days; have it signed anew, and send ptcd SIGHUP"));
	/* Renewed, and not reloaded: the old one is still shown to everybody. */
	put("n1", 200);
	assert_non_null(strstr(looked(), "tls.cert: the certificate in use ends in 3 days, and "));
	assert_non_null(strstr(looked(), "n1.crt holds a newer one; send ptcd SIGHUP"));
	assert_days(4);
	ptc_cert_end_taken(&config);
	assert_days(200);
	assert_string_equal(looked(), "");
	/* The end is far away: only the reload is missing. etcd's counts, too. */
	put("etcd", 400);
	assert_non_null(strstr(looked(), "coordinator.tls.cert: the certificate in use ends in 299 days, and "));
	put("etcd", 10);
	assert_string_equal(looked(), "");
	ptc_cert_end_taken(&config);
	assert_days(10);
	assert_non_null(strstr(looked(), "etcd.crt ends in 9 days; have it signed anew"));
	/* The file is gone for a moment, or not a certificate. */
	test_sh("cd '%s' && echo no >n1.crt && rm etcd.crt", dir);
	ptc_cert_end_taken(&config);
	assert_days(10);
	assert_non_null(strstr(looked(), "etcd.crt ends in 9 days; have it signed anew"));
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(only_what_is_in_use_counts) };
	int rc;

	ptc_require(mkdtemp(dir) != NULL);
	snprintf(cert, sizeof cert, "%s/n1.crt", dir);
	snprintf(etcd_cert, sizeof etcd_cert, "%s/etcd.crt", dir);
	test_ca(dir, "ca");
	rc = cmocka_run_group_tests(tests, NULL, NULL);
	test_sh("rm -r '%s'", dir);
	return rc;
}
