/* SPDX-License-Identifier: Apache-2.0 */
/* The file of a group of ranks, written here byte by byte as every version of it is (docs/versions.md): a ptcd that
 * cannot read what the one before has written ends the ranks that it should adopt. */
#include "daemon/workers/group/internal.h"

#include "base/number/digest.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct file {
	uint8_t bytes[4096];
	size_t len;
};

static void put(struct file *f, uint64_t value, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++)
		f->bytes[f->len++] = (uint8_t)(value >> 8 * i);
}

static void put_text(struct file *f, const char *text)
{
	put(f, strlen(text) + 1, 4);
	memcpy(f->bytes + f->len, text, strlen(text) + 1);
	f->len += strlen(text) + 1;
}

static void put_texts(struct file *f, const char *first, const char *second)
{
	put(f, 2, 4);
	put_text(f, first);
	put_text(f, second);
}

/* As the first versions wrote it: two ranks of eight, degrees 2 to 7. */
static void put_group(struct file *f)
{
	put(f, UINT64_C(0x3150554f52474350), 8);
	put(f, 2, 4);
	put_text(f, "0f5f0b1c-0000-0000-0000-00000000002a");
	put(f, 3, 8);                            /* generation */
	put(f, UINT64_C(0x0102030405060708), 8); /* incarnation */
	put_text(f, "gpt");
	put(f, 1000, 4); /* uid */
	put(f, 1, 1);    /* rebuild */
	put(f, 1, 1);    /* copy: fast */
	put(f, 50, 8);   /* snapshot_every */
	put(f, 9000, 4); /* grace_ms */
	put(f, 4096, 8); /* log_bytes */
	put_text(f, "/work");
	put_text(f, "tp=2,dp=4");
	for (uint32_t i = 2; i < 8; i++)
		put(f, i, 4); /* tp pp dp cp ep etp */
	put(f, 1, 4);         /* zero */
	put(f, 11, 4);        /* micro_batch */
	put(f, 12, 4);        /* global_batch */
	put(f, 8, 4);         /* world */
	put(f, 1, 4);         /* node_rank */
	put(f, 4, 4);         /* nodes */
	put_text(f, "n0");
	put_text(f, "10.0.0.1:7700");
	put_texts(f, "train", "--fast");
	put_texts(f, "A=1", "B=2");
	put(f, 2, 4); /* ranks */
	for (uint32_t i = 0; i < 14; i++)
		put(f, i + 20, 4); /* rank, local rank, device, tp pp dp cp */
	put(f, 1, 1);              /* built */
	put(f, 0, 1);              /* ending */
	put(f, 1, 1);              /* dropping */
	put(f, 77, 8);             /* start_step */
	put(f, 1, 1);              /* has_state */
	put(f, 5, 4);              /* its processes' numbers */
	put(f, 6, 4);
}

static struct group *loaded(struct file f)
{
	struct group *g = NULL;
	struct ptc_error err = PTC_ERROR_INIT;

	put(&f, ptc_checksum(f.bytes, f.len), 8);
	if (ptc_group_load(f.bytes, f.len, &g, &err) != 0)
		fail_msg("%s", err.text);
	return g;
}

static void an_old_file(void **state)
{
	struct file f = { .len = 0 };
	const struct ptc_group_desc *d;
	struct group *g;

	(void)state;
	put_group(&f);
	g = loaded(f);
	d = &g->desc;
	assert_string_equal(d->key.uuid, "0f5f0b1c-0000-0000-0000-00000000002a");
	assert_true(d->key.generation == 3 && d->key.incarnation == UINT64_C(0x0102030405060708));
	assert_string_equal(d->job, "gpt");
	assert_true(d->uid == 1000 && d->mode == PTC_MODE_REBUILD && d->fast_copy);
	assert_true(d->snapshot_every == 50 && d->grace_ms == 9000 && d->log_bytes == 4096);
	assert_string_equal(d->cwd, "/work");
	assert_string_equal(d->config, "tp=2,dp=4");
	for (uint32_t i = 0; i < 6; i++)
		assert_int_equal(d->degrees[i], i + 2);
	assert_true(d->zero == 1 && d->micro_batch == 11 && d->global_batch == 12);
	assert_true(d->world == 8 && d->node_rank == 1 && d->nodes == 4);
	assert_string_equal(d->rank0_node, "n0");
	assert_string_equal(d->rank0_address, "10.0.0.1:7700");
	assert_string_equal(d->argv[1], "--fast");
	assert_string_equal(d->env[1], "B=2");
	assert_true(!d->argv[2] && !d->env[2] && d->nranks == 2);
	assert_true(d->ranks[0].rank == 20 && d->ranks[0].cp == 26 && d->ranks[1].rank == 27 && d->ranks[1].cp == 33);
	assert_true(g->built && !g->ending && g->dropping && g->start_step == 77 && g->has_state);
	assert_true(g->slots[0].number == 5 && g->slots[1].number == 6);
	assert_true(d->share_devices && !d->recomputes && !d->scheduled); /* it does not say */
	ptc_group_free(g);
}

/* Each later version has written more behind it. */
static void additions(void **state)
{
	struct file f = { .len = 0 };
	struct group *g;

	(void)state;
	put_group(&f);
	put(&f, 0, 1); /* share_devices */
	g = loaded(f);
	assert_true(!g->desc.share_devices && !g->desc.recomputes);
	ptc_group_free(g);
	put(&f, 3, 1); /* recomputes, scheduled */
	g = loaded(f);
	assert_true(!g->desc.share_devices && g->desc.recomputes && g->desc.scheduled);
	ptc_group_free(g);
	put(&f, UINT64_C(0x1122334455667788), 8); /* of a version to come */
	g = loaded(f);
	assert_true(!g->desc.share_devices && g->desc.recomputes && g->slots[1].number == 6);
	ptc_group_free(g);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(an_old_file), cmocka_unit_test(additions) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
