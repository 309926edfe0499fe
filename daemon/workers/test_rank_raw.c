/* SPDX-License-Identifier: Apache-2.0 */
/* A rank that speaks the local protocol by hand, and wrongly: each mistake on a connection of its own, and after each
 * of them ptcd must still take a good one. */
#include "daemon/workers/test_rank.h"
#include "proto/local_messages.h"
#include "proto/local_page.h"
#include "proto/local_rules.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static char heard[600];   /* the last refusal */
static uint32_t welcomed; /* protocol of the last WELCOME */

static void expect(bool ok, const char *what)
{
	if (ok)
		return;
	printf("raw: %s; heard last: %s\n", what, heard);
	fflush(stdout);
	_exit(3);
}

static struct ptc_local_conn dial(void)
{
	struct ptc_local_conn c;
	struct sockaddr_un a;
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), dir;

	if (fd < 0 || ptc_local_address(getenv("PTC_WORKER_SOCKET"), &a, &dir) ||
	    connect(fd, (struct sockaddr *)&a, sizeof a) != 0) {
		printf("raw: connect: %s\n", strerror(errno));
		exit(3);
	}
	ptc_local_conn_init(&c, fd, realloc);
	return c;
}

static void hang_up(struct ptc_local_conn *c)
{
	close(c->fd);
	ptc_local_conn_done(c, free);
}

/* The next message's type; 0 at the end of the connection. *ret_code: of a refusal. */
static int hear(struct ptc_local_conn *c, int32_t *ret_code)
{
	struct ptc_local_message m;
	struct ptc_local_refusal r;
	struct ptc_local_welcome w;
	bool more;

	*ret_code = 0;
	for (;;) {
		struct pollfd p = { .fd = c->fd, .events = POLLIN };
		int rc;

		if (poll(&p, 1, 20000) != 1)
			return -1;
		rc = ptc_local_receive(c, &m, &more);
		if (rc == 0)
			continue;
		if (rc < 0) {
			snprintf(heard, sizeof heard, "the end: %s", strerror(-rc));
			return 0;
		}
		snprintf(heard, sizeof heard, "message %u", m.type);
		if (m.fd >= 0)
			close(m.fd);
		if (m.type == PTC_LOCAL_WELCOME && ptc_local_get_welcome(m.data, m.len, &w))
			welcomed = w.protocol;
		if (m.type == PTC_LOCAL_REFUSED && ptc_local_get_refusal(m.data, m.len, &r)) {
			*ret_code = r.code;
			snprintf(heard, sizeof heard, "%d: %.550s", r.code, r.text);
		}
		return m.type;
	}
}

static void say(struct ptc_local_conn *c, uint16_t type, const struct ptc_local_out *o, int fd)
{
	size_t offset = 0;

	ptc_local_send(c, type, o ? o->data : NULL, o ? o->len : 0, fd, &offset);
}

static void hello(struct ptc_local_conn *c, const struct ptc_local_hello *h, int fd)
{
	struct ptc_local_out o = { .grow = realloc };

	ptc_local_put_hello(&o, h);
	say(c, PTC_LOCAL_HELLO, &o, fd);
	free(o.data);
}

static struct ptc_local_hello good(void)
{
	return (struct ptc_local_hello){ .protocol_min = 1,
					 .protocol_max = PTC_LOCAL_PROTOCOL,
					 .pid = (uint64_t)getpid(),
					 .token = getenv("PTC_WORKER_TOKEN"),
					 .version = "raw" };
}

static void expect_refusal(struct ptc_local_conn *c, int32_t code, const char *what)
{
	int32_t got;

	expect(hear(c, &got) == PTC_LOCAL_REFUSED && (!code || got == code), what);
	expect(hear(c, &got) == 0, "the connection of one that was refused stays open");
	hang_up(c);
}

static struct ptc_local_conn welcome(const char *after)
{
	struct ptc_local_conn c = dial();
	struct ptc_local_hello h = good();
	int32_t code;

	hello(&c, &h, -1);
	expect(hear(&c, &code) == PTC_LOCAL_WELCOME, after);
	return c;
}

static void bad_hellos(void)
{
	struct ptc_local_conn c = dial();
	struct ptc_local_hello h = good();
	int fds[2], memfd = memfd_create("x", MFD_CLOEXEC);

	h.token = "00000000000000000000000000000000";
	hello(&c, &h, -1);
	expect_refusal(&c, PTC_LOCAL_R_STALE, "a token of nobody is taken");
	c = dial();
	h = good();
	h.protocol_min = h.protocol_max = 7;
	hello(&c, &h, -1);
	expect_refusal(&c, PTC_LOCAL_R_VERSION, "protocol 7 is taken");
	c = dial();
	say(&c, PTC_LOCAL_NEXT, NULL, -1);
	expect_refusal(&c, 0, "NEXT comes before HELLO");
	/* a page that could be cut off under ptcd, and one that is none */
	h = good();
	expect(ftruncate(memfd, PTC_LOCAL_PAGE) == 0 && pipe2(fds, O_CLOEXEC) == 0, "cannot make descriptors");
	c = dial();
	hello(&c, &h, memfd);
	expect_refusal(&c, 0, "a page without seals is taken");
	c = dial();
	hello(&c, &h, fds[0]);
	expect_refusal(&c, 0, "a pipe is taken for a page");
	close(memfd);
	close(fds[0]);
	close(fds[1]);
	c = welcome("after bad HELLOs a good one is not welcome");
	hello(&c, &h, -1);
	expect_refusal(&c, 0, "a second HELLO is taken");
}

/* A page as ptcd makes them, of that version. */
static int page_of(uint32_t version)
{
	int fd = memfd_create("page", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	struct ptc_local_page *p = MAP_FAILED;

	if (fd >= 0 && ftruncate(fd, PTC_LOCAL_PAGE) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0)
		p = mmap(NULL, PTC_LOCAL_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	expect(p != MAP_FAILED, "cannot make a page");
	p->magic = PTC_LOCAL_MAGIC;
	p->version = version;
	munmap(p, PTC_LOCAL_PAGE);
	return fd;
}

/* A HELLO that speaks from min to max and has a page of that version (0: none), with bytes of a later version behind
 * it. */
static void hello_of(struct ptc_local_conn *c, uint32_t min, uint32_t max, uint32_t page)
{
	struct ptc_local_out o = { .grow = realloc };
	struct ptc_local_hello h = good();
	int fd = page ? page_of(page) : -1;

	*c = dial();
	h.protocol_min = min;
	h.protocol_max = max;
	ptc_local_put_hello(&o, &h);
	ptc_local_put_u64(&o, UINT64_C(0x1122334455667788));
	say(c, PTC_LOCAL_HELLO, &o, fd);
	free(o.data);
	if (fd >= 0)
		close(fd);
}

static void spoken(uint32_t min, uint32_t max, uint32_t page, uint32_t want, const char *what)
{
	struct ptc_local_conn c;
	int32_t code;

	hello_of(&c, min, max, page);
	welcomed = 0;
	expect(hear(&c, &code) == PTC_LOCAL_WELCOME, what);
	expect(welcomed == want, what);
	/* a message of a later protocol, and one with fields behind those we know */
	say(&c, PTC_LOCAL_WELCOME - 1, NULL, -1);
	hang_up(&c);
}

static void not_spoken(uint32_t min, uint32_t max, uint32_t page, const char *says, const char *what)
{
	struct ptc_local_conn c;
	int32_t code;

	hello_of(&c, min, max, page);
	expect(hear(&c, &code) == PTC_LOCAL_REFUSED && code == PTC_LOCAL_R_VERSION, what);
	expect(strstr(heard, says) != NULL, what);
	hang_up(&c);
}

static void versions(void)
{
	const uint32_t ours = PTC_LOCAL_PROTOCOL, oldest = PTC_LOCAL_OLDEST, page = PTC_LOCAL_PAGE_VERSION;

	spoken(oldest, ours + 1, 0, ours, "a rank of the next version is not negotiated down");
	spoken(oldest, oldest, 0, oldest, "a rank of the version before is not spoken to in its own");
	spoken(ours, ours, page + 1, ours, "a page of the next version is refused");
	spoken(ours, ours, PTC_LOCAL_PAGE_OLDEST, ours, "a page of the version before is refused");
	not_spoken(ours + 1, ours + 1, 0, "upgrade ptcd on this node", "a protocol above ours is taken");
	not_spoken(0, oldest - 1, 0, "newer libptc", "a protocol below our oldest is taken");
	not_spoken(ours + 1, ours, 0, "speaks protocols", "a range that ends before it begins is taken");
	not_spoken(ours, ours, page + 2, "shared page is of version", "a page two versions on is taken");
}

static void bad_frames(void)
{
	struct ptc_local_header h = { .magic = 1, .type = PTC_LOCAL_NEXT };
	static uint8_t big[PTC_LOCAL_FRAME_MAX];
	struct ptc_local_conn c = dial();
	int32_t code;

	expect(send(c.fd, &h, sizeof h, 0) == sizeof h, "send");
	expect_refusal(&c, 0, "a frame without our magic is taken");
	c = welcome("after a bad frame a good HELLO is not welcome");
	h = (struct ptc_local_header){ .magic = PTC_LOCAL_MAGIC, .type = PTC_LOCAL_NEXT, .seq = 99 };
	expect(send(c.fd, &h, sizeof h, 0) == sizeof h, "send");
	expect_refusal(&c, 0, "a frame out of order is taken");
	/* a message without end */
	c = welcome("after a frame out of order a good HELLO is not welcome");
	for (uint64_t seq = 1; seq < 1000; seq++) {
		h = (struct ptc_local_header){ .magic = PTC_LOCAL_MAGIC,
					       .type = PTC_LOCAL_TENSOR,
					       .flags = PTC_LOCAL_MORE,
					       .length = sizeof big - sizeof h,
					       .seq = seq };
		memcpy(big, &h, sizeof h);
		if (send(c.fd, big, sizeof big, MSG_NOSIGNAL) < 0)
			break;
	}
	do
		expect(hear(&c, &code) >= 0, "a message without end is read for ever");
	while (hear(&c, &code) > 0);
	hang_up(&c);
}

/* A message that is not allowed before there is a generation. */
static void out_of_turn(uint16_t type, const char *what)
{
	struct ptc_local_conn c = welcome(what);
	struct ptc_local_out o = { .grow = realloc };

	if (type == PTC_LOCAL_TENSOR)
		ptc_local_put_tensor(&o, &(struct ptc_local_tensor){ .name = "a", .field = "", .dtype = "F32" }, NULL);
	else if (type == PTC_LOCAL_STOPPED)
		ptc_local_put_stopped(&o, &(struct ptc_local_stopped){ .step = 1, .refused = "" });
	else if (type == PTC_LOCAL_BLOB)
		ptc_local_put_blob(&o, &(struct ptc_local_blob){ "b", 1, "x", 1 });
	else
		ptc_local_put_number(&o, 0);
	say(&c, type, &o, -1);
	free(o.data);
	expect_refusal(&c, 0, what);
}

/* Memory that it keeps has to be a memfd that cannot be cut off: any other file could hold up who reads it. */
static void bad_keeps(void)
{
	int fds[2], memfd = memfd_create("x", MFD_CLOEXEC), given[] = { -1, 0, memfd };
	struct ptc_local_out o = { .grow = realloc };

	expect(ftruncate(memfd, PTC_LOCAL_PAGE) == 0 && pipe2(fds, O_CLOEXEC) == 0, "cannot make descriptors");
	given[1] = fds[0];
	ptc_local_put_keeps(&o, &(struct ptc_local_keeps){ 4096, PTC_LOCAL_PAGE });
	for (size_t i = 0; i < sizeof given / sizeof *given; i++) {
		struct ptc_local_conn c = welcome("before memory that is none a good HELLO is not welcome");

		say(&c, PTC_LOCAL_KEEPS, &o, given[i]);
		expect_refusal(&c, 0, "memory that could be cut off is taken to be kept");
	}
	free(o.data);
	close(memfd);
	close(fds[0]);
	close(fds[1]);
}

/* One that says it is of a generation or incarnation it was not given: it is told that this has ended, whatever it
 * says. */
static void stale(uint64_t generation, uint64_t incarnation)
{
	struct ptc_local_conn c = dial();
	struct ptc_local_hello h = good();
	struct ptc_local_out o = { .grow = realloc };
	int32_t code;

	h.resume_phase = PTC_LOCAL_IS_STOPPED;
	h.generation = generation;
	h.incarnation = incarnation;
	hello(&c, &h, -1);
	ptc_local_put_tensor(&o, &(struct ptc_local_tensor){ .name = "a", .field = "", .dtype = "F32" }, NULL);
	say(&c, PTC_LOCAL_TENSOR, &o, -1);
	o.len = 0;
	ptc_local_put_number(&o, 0);
	say(&c, PTC_LOCAL_DECLARED, &o, -1);
	free(o.data);
	expect(hear(&c, &code) == PTC_LOCAL_WELCOME, "one of another generation is not welcome");
	expect(hear(&c, &code) == PTC_LOCAL_ENDED, "one of another generation is not told that it has ended");
	hang_up(&c);
}

/* Asks without hearing: it is not asked further than ptcd can answer, and all is answered once it hears. */
static void deaf(void)
{
	struct ptc_local_conn c = welcome("before one that does not hear a good HELLO is not welcome");
	struct ptc_local_out o = { .grow = realloc };
	struct pollfd p = { .fd = c.fd, .events = POLLOUT };
	uint64_t asked = 0;
	int32_t code;

	ptc_local_put_rendezvous(&o,
				 &(struct ptc_local_rendezvous){ .id = 1, .key = "k", .text = "", .timeout_ms = 1 });
	for (; asked < 200000 && poll(&p, 1, 1000) == 1; asked++)
		say(&c, PTC_LOCAL_RENDEZVOUS_GET, &o, -1);
	free(o.data);
	expect(asked < 200000, "ptcd takes requests for ever from one that does not hear the answers");
	for (; asked; asked--)
		expect(hear(&c, &code) == PTC_LOCAL_RENDEZVOUS_REPLY, "an answer is missing");
	hang_up(&c);
}

static void strangers(void)
{
	struct ptc_local_conn all[100];
	struct ptc_local_conn c;

	for (int i = 0; i < 100; i++)
		all[i] = dial();
	for (int i = 0; i < 100; i++)
		hang_up(&all[i]);
	c = welcome("after many strangers a good HELLO is not welcome");
	hang_up(&c);
}

/* ptcd may not know our pid yet, and then hangs up: libptc tries again, and so do we, once at the beginning. */
static void wait_until_known(void)
{
	struct ptc_local_hello h = good();
	int32_t code;

	for (int i = 0; i < 20000; i++) {
		struct ptc_local_conn c = dial();
		int type;

		hello(&c, &h, -1);
		type = hear(&c, &code);
		hang_up(&c);
		if (type == PTC_LOCAL_WELCOME)
			return;
		usleep(1000);
	}
	expect(false, "a good HELLO is never welcome");
}

int test_rank_raw(void)
{
	struct ptc_local_conn c;

	wait_until_known();
	bad_hellos();
	versions();
	bad_frames();
	bad_keeps();
	out_of_turn(PTC_LOCAL_TENSOR, "a tensor is taken without a generation");
	out_of_turn(PTC_LOCAL_DECLARED, "DECLARED is taken without a generation");
	out_of_turn(PTC_LOCAL_BLOB, "a blob is taken without a generation");
	out_of_turn(PTC_LOCAL_STOPPED, "STOPPED is taken without a generation");
	out_of_turn(PTC_LOCAL_GO, "a message of ptcd's own is taken");
	stale(1, 1);
	stale(1, 0);
	stale(7, 7);
	deaf();
	strangers();
	c = welcome("at the end a good HELLO is not welcome");
	say(&c, PTC_LOCAL_BYE, NULL, -1);
	hang_up(&c);
	return 0;
}

/* ---- many ranges ---------------------------------------------------------------------- */

static void say_all(struct ptc_local_conn *c, uint16_t type, struct ptc_local_out *o)
{
	struct pollfd p = { .fd = c->fd, .events = POLLOUT };
	size_t offset = 0;
	int rc;

	while ((rc = ptc_local_send(c, type, o->data, o->len, -1, &offset)) == 0)
		expect(poll(&p, 1, 20000) == 1, "ptcd does not read on");
	expect(rc > 0, "cannot send");
	o->len = 0;
}

int test_rank_ranges(void)
{
	static uint8_t bytes[TEST_RANGES_BYTES];
	static const uint8_t ipc[PTC_LOCAL_IPC_BYTES];
	struct ptc_local_box box = { .extent = { sizeof bytes }, .address = (uintptr_t)bytes, .stride = { 1 } };
	struct ptc_local_out o = { .grow = realloc };
	struct ptc_local_conn c;
	int32_t code;
	int type;

	wait_until_known();
	c = welcome("a good HELLO is not welcome");
	say_all(&c, PTC_LOCAL_NEXT, &o);
	do
		type = hear(&c, &code);
	while (type > 0 && type != PTC_LOCAL_GENERATION);
	expect(type == PTC_LOCAL_GENERATION, "no generation comes");
	ptc_local_put_tensor(
		&o,
		&(struct ptc_local_tensor){
			.name = "t", .field = "", .dtype = "U8", .ndim = 1, .shape = { sizeof bytes }, .nboxes = 1 },
		&box);
	say_all(&c, PTC_LOCAL_TENSOR, &o);
	for (size_t i = 0; i < sizeof bytes; i++) {
		ptc_local_put_device(&o, &(struct ptc_local_device){ .address = box.address + i,
								     .bytes = 1,
								     .uuid = "GPU-none",
								     .why = "",
								     .ipc = ipc });
		say_all(&c, PTC_LOCAL_DEVICE, &o);
	}
	ptc_local_put_number(&o, 0);
	say_all(&c, PTC_LOCAL_DECLARED, &o);
	free(o.data);
	while (hear(&c, &code) > 0)
		;
	return 0;
}
