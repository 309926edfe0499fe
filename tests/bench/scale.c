/* SPDX-License-Identifier: Apache-2.0 */
/* ptc-bench-scale: layout, mapping and plan of a large model on many devices,
 * on one core, each move enumerated. Prints one JSON document; with --out,
 * writes what some ranks keep and get, one line each, for ptc-bench to check
 * against arithmetic of its own:
 *   KIND RANK NAME FIELD SRC_RANK NDIM (OFF EXT)...      in bytes along the last dim
 */
#include "base/alloc.h"
#include "reshard/place/place.h"

#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct args {
	const char *from, *to, *out;
	int64_t layers, hidden, vocab;
	uint32_t per_node, samples, drain;
	uint64_t seed;
	bool moe;
};

static double seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* What this program itself used at most; getrusage would count what was there before exec. */
static uint64_t peak_rss(void)
{
	unsigned long long kib = 0;
	char line[256];
	FILE *f = fopen("/proc/self/status", "r");

	while (f && fgets(line, sizeof line, f) && sscanf(line, "VmHWM: %llu kB", &kib) != 1)
		;
	if (f)
		fclose(f);
	return kib << 10;
}

/* ---- the model ---- */

static void add_tensor(struct ptc_spec *s, char *name, uint32_t ndim, int64_t a, int64_t b)
{
	struct ptc_tensor *t = &s->tensors[s->ntensors++];

	*t = (struct ptc_tensor){ .name = name, .dtype = PTC_BF16, .ndim = ndim, .shape = { a, b } };
}

static int by_name(const void *a, const void *b)
{
	const struct ptc_tensor *x = a, *y = b;

	return strcmp(x->name, y->name);
}

struct part {
	const char *name;
	uint32_t ndim, rows, cols;
};

static void add_layer(struct ptc_spec *s, int64_t i, int64_t h)
{
	static const struct part parts[] = {
		/* rows and columns times h */
		{ "ln_1.weight", 1, 1, 0 },      { "ln_1.bias", 1, 1, 0 },       { "ln_2.weight", 1, 1, 0 },
		{ "ln_2.bias", 1, 1, 0 },        { "attn.qkv.weight", 2, 3, 1 }, { "attn.qkv.bias", 1, 3, 0 },
		{ "attn.proj.weight", 2, 1, 1 }, { "attn.proj.bias", 1, 1, 0 },  { "mlp.up.weight", 2, 4, 1 },
		{ "mlp.up.bias", 1, 4, 0 },      { "mlp.down.weight", 2, 1, 4 }, { "mlp.down.bias", 1, 1, 0 },
	};

	for (size_t k = 0; k < sizeof parts / sizeof *parts; k++)
		add_tensor(s, ptc_asprintf("h.%" PRId64 ".%s", i, parts[k].name), parts[k].ndim, parts[k].rows * h,
			   parts[k].cols * h);
}

static struct ptc_field fields[] = { { "exp_avg", PTC_F32, false },
				     { "exp_avg_sq", PTC_F32, false },
				     { "master", PTC_F32, false } };

static void spec_init(struct ptc_spec *s, const char *name, size_t tensors, struct ptc_rule *rules, size_t nrules)
{
	*s = (struct ptc_spec){ .name = name, .fields = fields, .nfields = 3, .rules = rules, .nrules = nrules };
	for (size_t i = 0; i < nrules; i++)
		if (rules[i].layer)
			rules[i].place = PTC_PLACE_LAYER;
	s->tensors = calloc(tensors, sizeof *s->tensors);
	if (!s->tensors)
		abort();
}

/* A GPT: column-parallel qkv (three blocks) and up, row-parallel proj and down, vocabulary split with padding. */
static void make_dense(struct ptc_spec *s, const struct args *a)
{
	static int64_t blocks[3];
	static struct ptc_rule rules[] = {
		{ .match = "wte", .splits = { { .axis = PTC_AXIS_TP, .pad_to = 128 } }, .place = PTC_PLACE_ENDS },
		{ .match = "wpe", .place = PTC_PLACE_FIRST },
		{ .match = "ln_f.*", .place = PTC_PLACE_LAST },
		{ .match = "*.attn.qkv.*",
		  .splits = { { .axis = PTC_AXIS_TP, .blocks = blocks, .nblocks = 3 } },
		  .layer = "h.{}.*" },
		{ .match = "*.mlp.up.*", .splits = { { .axis = PTC_AXIS_TP } }, .layer = "h.{}.*" },
		{ .match = "*.attn.proj.weight", .splits = { { .axis = PTC_AXIS_TP, .dim = 1 } }, .layer = "h.{}.*" },
		{ .match = "*.mlp.down.weight", .splits = { { .axis = PTC_AXIS_TP, .dim = 1 } }, .layer = "h.{}.*" },
		{ .match = "h.*", .layer = "h.{}.*" },
	};

	spec_init(s, "dense", (size_t)a->layers * 12 + 4, rules, sizeof rules / sizeof *rules);
	blocks[0] = blocks[1] = blocks[2] = a->hidden;
	for (int64_t i = 0; i < a->layers; i++)
		add_layer(s, i, a->hidden);
	add_tensor(s, ptc_strdup("wte"), 2, a->vocab, a->hidden);
	add_tensor(s, ptc_strdup("wpe"), 2, 4096, a->hidden);
	add_tensor(s, ptc_strdup("ln_f.weight"), 1, a->hidden, 0);
	add_tensor(s, ptc_strdup("ln_f.bias"), 1, a->hidden, 0);
	qsort(s->tensors, s->ntensors, sizeof *s->tensors, by_name);
}

static void add_matrices(struct ptc_spec *s, const char *prefix, int64_t h, int64_t inner)
{
	add_tensor(s, ptc_asprintf("%s.gate_proj.weight", prefix), 2, inner, h);
	add_tensor(s, ptc_asprintf("%s.up_proj.weight", prefix), 2, inner, h);
	add_tensor(s, ptc_asprintf("%s.down_proj.weight", prefix), 2, h, inner);
}

/* The sizes of DeepSeek-V3 (its technical report, section 4.2), one tensor per expert as in its published files. */
static void make_moe(struct ptc_spec *s, const struct args *a)
{
	enum { HIDDEN = 7168, HEADS = 128, EXPERTS = 256, DENSE_LAYERS = 3 };
	static const struct part attention[] = {
		{ "input_layernorm.weight", 1, HIDDEN, 0 },
		{ "post_attention_layernorm.weight", 1, HIDDEN, 0 },
		{ "self_attn.q_a_proj.weight", 2, 1536, HIDDEN },
		{ "self_attn.q_a_layernorm.weight", 1, 1536, 0 },
		{ "self_attn.q_b_proj.weight", 2, HEADS * 192, 1536 },
		{ "self_attn.kv_a_proj_with_mqa.weight", 2, 576, HIDDEN },
		{ "self_attn.kv_a_layernorm.weight", 1, 512, 0 },
		{ "self_attn.kv_b_proj.weight", 2, HEADS * 256, 512 },
		{ "self_attn.o_proj.weight", 2, HIDDEN, HEADS * 128 },
	};
	static struct ptc_rule rules[] = {
		{ .match = "model.embed_tokens.weight",
		  .splits = { { .axis = PTC_AXIS_TP } },
		  .place = PTC_PLACE_FIRST },
		{ .match = "lm_head.weight", .splits = { { .axis = PTC_AXIS_TP } }, .place = PTC_PLACE_LAST },
		{ .match = "model.norm.weight", .place = PTC_PLACE_LAST },
		{ .match = "*.experts.*.down_proj.weight",
		  .splits = { { .axis = PTC_AXIS_ETP, .dim = 1 } },
		  .layer = "model.layers.{}.*",
		  .expert = "*.experts.{}.*" },
		{ .match = "*.experts.*",
		  .splits = { { .axis = PTC_AXIS_ETP } },
		  .layer = "model.layers.{}.*",
		  .expert = "*.experts.{}.*" },
		{ .match = "*.down_proj.weight",
		  .splits = { { .axis = PTC_AXIS_TP, .dim = 1 } },
		  .layer = "model.layers.{}.*" },
		{ .match = "*.gate_proj.weight", .splits = { { .axis = PTC_AXIS_TP } }, .layer = "model.layers.{}.*" },
		{ .match = "*.up_proj.weight", .splits = { { .axis = PTC_AXIS_TP } }, .layer = "model.layers.{}.*" },
		{ .match = "*.o_proj.weight",
		  .splits = { { .axis = PTC_AXIS_TP, .dim = 1 } },
		  .layer = "model.layers.{}.*" },
		{ .match = "*.q_b_proj.weight",
		  .splits = { { .axis = PTC_AXIS_TP, .unit = 192 } },
		  .layer = "model.layers.{}.*" },
		{ .match = "*.kv_b_proj.weight",
		  .splits = { { .axis = PTC_AXIS_TP, .unit = 256 } },
		  .layer = "model.layers.{}.*" },
		{ .match = "model.layers.*", .layer = "model.layers.{}.*" },
	};
	char prefix[128];

	spec_init(s, "moe", (size_t)a->layers * (EXPERTS * 3 + 20) + 3, rules, sizeof rules / sizeof *rules);
	for (int64_t i = 0; i < a->layers; i++) {
		for (size_t k = 0; k < sizeof attention / sizeof *attention; k++)
			add_tensor(s, ptc_asprintf("model.layers.%" PRId64 ".%s", i, attention[k].name),
				   attention[k].ndim, attention[k].rows, attention[k].cols);
		snprintf(prefix, sizeof prefix, "model.layers.%" PRId64 ".mlp", i);
		if (i < DENSE_LAYERS) {
			add_matrices(s, prefix, HIDDEN, 18432);
			continue;
		}
		add_tensor(s, ptc_asprintf("%s.gate.weight", prefix), 2, EXPERTS, HIDDEN);
		snprintf(prefix, sizeof prefix, "model.layers.%" PRId64 ".mlp.shared_experts", i);
		add_matrices(s, prefix, HIDDEN, 2048);
		for (int e = 0; e < EXPERTS; e++) {
			snprintf(prefix, sizeof prefix, "model.layers.%" PRId64 ".mlp.experts.%d", i, e);
			add_matrices(s, prefix, HIDDEN, 2048);
		}
	}
	add_tensor(s, ptc_strdup("model.embed_tokens.weight"), 2, 129280, HIDDEN);
	add_tensor(s, ptc_strdup("lm_head.weight"), 2, 129280, HIDDEN);
	add_tensor(s, ptc_strdup("model.norm.weight"), 1, HIDDEN, 0);
	qsort(s->tensors, s->ntensors, sizeof *s->tensors, by_name);
}

/* ---- what comes of it ---- */

struct sink {
	const struct ptc_spec *spec;
	uint64_t moves, sum; /* sum: every field of every move goes into it, so that none is left out */
	bool *sampled;       /* per rank */
	FILE *out;
};

static int take(void *arg, const struct ptc_move *m)
{
	static const char *const kinds[] = { "between", "within", "forward", "keep" };
	struct sink *s = arg;
	size_t nf = 1 + s->spec->nfields;

	if (m->kind != PTC_MOVE_KEEP) {
		s->moves++;
		s->sum = s->sum * 31 + m->item + ((uint64_t)m->src_rank << 32) + m->dst_rank +
			 (uint64_t)m->box.off[0] * 7 + (uint64_t)m->box.ext[0];
	}
	if (!s->out || !s->sampled[m->dst_rank])
		return 0;
	fprintf(s->out, "%s %u %s %s %u %u", kinds[m->kind], m->dst_rank, s->spec->tensors[m->item / nf].name,
		m->item % nf ? s->spec->fields[m->item % nf - 1].name : "-", m->src_rank, m->box.ndim);
	for (uint32_t d = 0; d < m->box.ndim; d++)
		fprintf(s->out, " %" PRId64 " %" PRId64, m->box.off[d], m->box.ext[d]);
	fputc('\n', s->out);
	return 0;
}

static uint64_t next(uint64_t *x)
{
	*x ^= *x << 13;
	*x ^= *x >> 7;
	*x ^= *x << 17;
	return *x >> 16;
}

/* n of the ranks, each at most once. */
static bool *draw(uint32_t world, uint32_t n, uint64_t seed)
{
	uint64_t x = seed * UINT64_C(0x9E3779B97F4A7C15) | 1;
	bool *drawn = calloc(world, sizeof *drawn);

	for (uint32_t i = 0; drawn && i < n && i < world;) {
		uint32_t rank = (uint32_t)(next(&x) % world);

		i += !drawn[rank];
		drawn[rank] = true;
	}
	return drawn;
}

static void die(const char *what, const struct ptc_error *err)
{
	fprintf(stderr, "ptc-bench-scale: %s: %s\n", what, err->text);
	exit(1);
}

static struct ptc_device *list_devices(const struct args *a, uint32_t n)
{
	struct ptc_device *v = calloc(n, sizeof *v);

	for (uint32_t i = 0; v && i < n; i++)
		v[i] = (struct ptc_device){ i / a->per_node, i % a->per_node };
	if (!v)
		abort();
	return v;
}

struct times {
	double layout, change, place, plan;
};

static void report(const struct args *a, const struct ptc_spec *s, const struct ptc_layout *from,
		   const struct ptc_layout *to, const struct ptc_plan *p, const struct sink *sink,
		   const struct times *t, int64_t gap)
{
	int64_t busiest_in = 0, busiest_out = 0;

	for (uint32_t n = 0; n < p->nnodes; n++) {
		busiest_in = p->in_bytes[n] > busiest_in ? p->in_bytes[n] : busiest_in;
		busiest_out = p->out_bytes[n] > busiest_out ? p->out_bytes[n] : busiest_out;
	}
	printf("{\"from\": \"%s\", \"to\": \"%s\", \"devices\": %u, \"new_ranks\": %u, \"items\": %zu, ", a->from,
	       a->to, ptc_layout_world(from), ptc_layout_world(to), ptc_spec_items(s));
	printf("\"layout_s\": %.4f, \"change_s\": %.4f, \"place_s\": %.4f, \"plan_s\": %.4f, \"total_s\": %.4f, ",
	       t->layout, t->change, t->place, t->plan, t->layout + t->change + t->place + t->plan);
	printf("\"peak_rss_bytes\": %" PRIu64 ", \"peak_heap_bytes\": %" PRIu64 ", ", peak_rss(), ptc_alloc_peak());
	printf("\"moves\": %" PRIu64 ", \"moves_between\": %" PRIu64 ", \"moves_within\": %" PRIu64
	       ", \"checksum\": \"%016" PRIx64 "\", ",
	       sink->moves, p->nbetween, p->nwithin, sink->sum);
	printf("\"in_place\": %" PRId64 ", \"kept\": %" PRId64 ", \"within_node\": %" PRId64
	       ", \"between_nodes\": %" PRId64 ", \"gap\": %" PRId64 ", \"busiest_in\": %" PRId64
	       ", \"busiest_out\": %" PRId64 "}\n",
	       p->in_place, p->kept, p->within_node, p->between_nodes, gap, busiest_in, busiest_out);
}

static void run(const struct args *a, const struct ptc_spec *s)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_config from_config, to_config;
	struct ptc_layout *from = NULL, *to = NULL;
	struct ptc_change *change = NULL;
	struct ptc_plan *plan = NULL;
	struct ptc_allocation was, now = { 0 };
	struct sink sink = { .spec = s };
	struct ptc_plan_opts opts = { .fn = take, .arg = &sink };
	struct ptc_place_opts place = { 0 };
	struct times t;
	uint32_t world, drained;
	int64_t gap = 0;
	double at = seconds();

	if (ptc_config_parse(a->from, &from_config, &err) || ptc_config_parse(a->to, &to_config, &err) ||
	    ptc_layout_new(s, &from_config, &from, &err) || ptc_layout_new(s, &to_config, &to, &err))
		die("layout", &err);
	t.layout = seconds() - at;
	world = ptc_layout_world(from);
	drained = a->drain * a->per_node;
	was = (struct ptc_allocation){ list_devices(a, world), world };
	place.devices = was.ranks;
	place.nnodes = (world + a->per_node - 1) / a->per_node;
	place.ndevices = world - drained; /* the last nodes are to be left: they send, and get nothing */
	at = seconds();
	if (ptc_change_new(from, to, &change, &err))
		die("change", &err);
	t.change = seconds() - at;
	at = seconds();
	if (ptc_change_place(change, &was, &place, &now, &gap, &err))
		die("place", &err);
	t.place = seconds() - at;
	if (a->out) {
		sink.out = fopen(a->out, "w");
		sink.sampled = draw(ptc_layout_world(to), a->samples, a->seed);
		if (!sink.out || !sink.sampled)
			die(a->out, &err);
		opts.keep = true;
	}
	at = seconds();
	if (ptc_plan_stream(change, &was, &now, place.nnodes, NULL, &opts, &plan, &err))
		die("plan", &err);
	t.plan = seconds() - at;
	report(a, s, from, to, plan, &sink, &t, gap);
	if (sink.out) {
		for (uint32_t r = 0; r < world; r++)
			fprintf(sink.out, "old %u %u %u\n", r, was.ranks[r].node, was.ranks[r].index);
		for (uint32_t r = 0; r < now.world; r++)
			fprintf(sink.out, "new %u %u %u %d\n", r, now.ranks[r].node, now.ranks[r].index,
				sink.sampled[r]);
		if (fclose(sink.out))
			die(a->out, &err);
	}
	ptc_plan_free(plan);
	ptc_change_free(change);
	ptc_allocation_done(&now);
	ptc_layout_free(from);
	ptc_layout_free(to);
	free(was.ranks);
	free(sink.sampled);
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "from", 1, NULL, 'f' },     { "to", 1, NULL, 't' },      { "out", 1, NULL, 'o' },
		{ "layers", 1, NULL, 'l' },   { "hidden", 1, NULL, 'h' },  { "vocab", 1, NULL, 'v' },
		{ "per-node", 1, NULL, 'n' }, { "samples", 1, NULL, 's' }, { "seed", 1, NULL, 'S' },
		{ "drain", 1, NULL, 'L' },    { "moe", 0, NULL, 'm' },     { 0 },
	};
	struct args a = { .layers = 128, .hidden = 25600, .vocab = 51200, .per_node = 8, .samples = 64, .seed = 1 };
	struct ptc_spec s;

	for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;)
		switch (c) {
		case 'f':
			a.from = optarg;
			break;
		case 't':
			a.to = optarg;
			break;
		case 'o':
			a.out = optarg;
			break;
		case 'l':
			a.layers = atoll(optarg);
			break;
		case 'h':
			a.hidden = atoll(optarg);
			break;
		case 'v':
			a.vocab = atoll(optarg);
			break;
		case 'n':
			a.per_node = (uint32_t)atoi(optarg);
			break;
		case 's':
			a.samples = (uint32_t)atoi(optarg);
			break;
		case 'S':
			a.seed = strtoull(optarg, NULL, 0);
			break;
		case 'L':
			a.drain = (uint32_t)atoi(optarg);
			break;
		case 'm':
			a.moe = true;
			break;
		default:
			return 2;
		}
	if (!a.from || !a.to || a.layers < 1 || a.hidden < 1 || a.per_node < 1) {
		fprintf(stderr, "usage: ptc-bench-scale --from CONFIG --to CONFIG [--layers N] [--hidden N] ...\n");
		return 2;
	}
	if (a.moe)
		make_moe(&s, &a);
	else
		make_dense(&s, &a);
	run(&a, &s);
	for (size_t i = 0; i < s.ntensors; i++) {
		char *name;

		memcpy(&name, &s.tensors[i].name, sizeof name);
		ptc_free(name);
	}
	free(s.tensors);
	return 0;
}
