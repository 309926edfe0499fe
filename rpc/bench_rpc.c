/* SPDX-License-Identifier: Apache-2.0 */
/* One bulk stream, server to client, over each transport: GB/s and CPU
 * seconds per GB, both ends in this process. Usage: bench_rpc [GiB]. */
#include "base/alloc.h"
#include "base/limits.h"
#include "base/sys/sys.h"
#include "rpc/client/client.h"
#include "rpc/server/server.h"
#include "rpc/test_certs.h"

#include <stdatomic.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define ROLES 0xeu

static char *memory;
static size_t messages;
static atomic_size_t released;

static void on_release(void *arg)
{
	(void)arg;
	atomic_fetch_add(&released, 1);
}

static int serve(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	(void)arg;
	for (size_t i = 0; i < messages; i++) {
		struct ptc_rpc_part p = { .data = memory, .len = PTC_BULK_MESSAGE_BYTES, .release = on_release };
		int rc = ptc_rpc_call_send(call, &p, 1, err);

		if (rc)
			return rc;
	}
	return 0;
}

static double cpu_seconds(void)
{
	struct rusage u;

	getrusage(RUSAGE_SELF, &u);
	return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
	       (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static void measure(const char *name, const struct ptc_rpc_channel_opts *opts, char *dst)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_rpc_channel *ch = NULL;
	struct ptc_rpc_stream *s = NULL;
	struct ptc_rpc_message *m = NULL;
	size_t bytes = 0;
	double cpu = cpu_seconds(), gb, wall;
	int64_t t0 = ptc_sys_now_ns();
	int rc = ptc_rpc_channel_new(opts, &ch, &err);

	if (!rc)
		rc = ptc_rpc_stream_open(ch, "/bench.Bulk/Fetch", 0, NULL, 0, &s, &err);
	if (!rc)
		rc = ptc_rpc_stream_half_close(s, &err);
	while (!rc && (rc = ptc_rpc_stream_recv(s, &m, &err)) == 0 && m)
		bytes += ptc_rpc_message_read(m, dst, PTC_BULK_MESSAGE_BYTES);
	ptc_rpc_stream_free(s);
	ptc_rpc_channel_free(ch);
	wall = (double)(ptc_sys_now_ns() - t0) / 1e9;
	gb = (double)bytes / 1e9;
	if (rc)
		printf("%-8s failed: %s\n", name, err.text);
	else
		printf("%-8s %.2f GB/s  %.2f CPU-s/GB\n", name, gb / wall, (cpu_seconds() - cpu) / gb);
}

static void measure_unary(const struct ptc_rpc_channel_opts *opts)
{
	struct ptc_rpc_channel *ch = NULL;
	struct ptc_error err = PTC_ERROR_INIT;
	int n = 2000, rc = ptc_rpc_channel_new(opts, &ch, &err);
	int64_t t0 = 0;

	for (int i = 0; i <= n && !rc; i++) {
		void *reply = NULL;
		size_t len;

		if (i == 1)
			t0 = ptc_sys_now_ns();
		rc = ptc_rpc_unary(ch, "/grpc.health.v1.Health/Check", "", 0, 5000, NULL, 0, &reply, &len, &err);
		ptc_free(reply);
	}
	ptc_rpc_channel_free(ch);
	printf("unary    %.0f us%s%s\n", (double)(ptc_sys_now_ns() - t0) / 1e3 / n, rc ? " failed: " : "", err.text);
}

int main(int argc, char **argv)
{
	char dir[] = "/tmp/ptc-bench-rpc-XXXXXX", ca[64], crt[64], key[64], sock[64], target[3][96];
	struct ptc_rpc_tls tls = { .ca_path = ca, .cert_path = crt, .key_path = key };
	struct ptc_rpc_server_opts so = { .max_calls = 0 };
	struct ptc_rpc_channel_opts co = { .bulk = true, .max_message_bytes = PTC_BULK_MESSAGE_MAX };
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_rpc_server *srv;
	char *dst = ptc_malloc(PTC_BULK_MESSAGE_BYTES);
	int port, tls_port;

	messages = (size_t)(argc > 1 ? atoi(argv[1]) : 2) * (1u << 30) / PTC_BULK_MESSAGE_BYTES;
	memory = ptc_malloc(PTC_BULK_MESSAGE_BYTES);
	ptc_require(dst && memory && mkdtemp(dir));
	memset(memory, 7, PTC_BULK_MESSAGE_BYTES);
	snprintf(ca, sizeof ca, "%s/ca.crt", dir);
	snprintf(crt, sizeof crt, "%s/n1.crt", dir);
	snprintf(key, sizeof key, "%s/n1.key", dir);
	snprintf(sock, sizeof sock, "%s/s", dir);
	test_ca(dir, "ca");
	test_cert(dir, "ca", "n1", "URI:ptc://node/n1,DNS:ptc-node", 2);
	ptc_rpc_init();
	if (ptc_rpc_server_new(&so, &srv, &err) ||
	    ptc_rpc_server_method(srv, "/bench.Bulk/Fetch", ROLES, serve, NULL, &err) ||
	    ptc_rpc_server_listen_insecure(srv, "127.0.0.1:0", &port, &err) ||
	    ptc_rpc_server_listen_tls(srv, "127.0.0.1:0", &tls, &tls_port, &err) ||
	    ptc_rpc_server_listen_unix(srv, sock, 0600, true, &err) || ptc_rpc_server_start(srv, &err)) {
		printf("%s\n", err.text);
		return 1;
	}
	snprintf(target[0], sizeof target[0], "127.0.0.1:%d", port);
	snprintf(target[1], sizeof target[1], "unix:%s", sock);
	snprintf(target[2], sizeof target[2], "127.0.0.1:%d", tls_port);
	co.target = target[0];
	co.insecure = true;
	measure("tcp", &co, dst);
	measure("tcp", &co, dst);
	measure_unary(&co);
	co.insecure = false;
	co.target = target[1];
	measure("unix", &co, dst);
	measure("unix", &co, dst);
	measure_unary(&co);
	co.tls = &tls;
	co.expect_node = "n1";
	co.target = target[2];
	measure("tls", &co, dst);
	measure("tls", &co, dst);
	measure_unary(&co);
	printf("released %zu of %zu\n", atomic_load(&released), 6 * messages);
	ptc_rpc_server_free(srv, 1000);
	ptc_rpc_shutdown();
	ptc_sys_remove_tree(dir, NULL, NULL);
	ptc_free(dst);
	ptc_free(memory);
	return 0;
}
