/* SPDX-License-Identifier: Apache-2.0 */
/* ptcctl dataset: add, list, remove, check, inspect. The source is opened here, as the user who asks; the daemon keeps
 * what it is told (docs/dataset.md). Happy path: open, look, one call. Failure modes: those of dataset/source.h, with
 * the file and the place in it; a registered source has changed. A wrong source is not registered. */
#include "client/ctl/datasets/datasets.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "client/ctl/show/show.h"
#include "formats/dataset/dataset_doc.h"
#include "formats/job/job.h"
#include "formats/json.h"
#include "formats/names.h"
#include "order/order.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/stat.h>

#define MAX_PROBLEMS     100 /* that are printed */
#define DEFAULT_ELEMENTS 16
#define MAX_ELEMENTS     4096

/* ---- what a source is ---- */

static bool exists(const char *path, const char *suffix, mode_t type)
{
	ptc_auto_free char *name = ptc_asprintf("%s%s", path, suffix);
	struct stat st;

	return name && stat(name, &st) == 0 && (st.st_mode & S_IFMT) == type;
}

static bool ends_in(const char *path, const char *suffix)
{
	size_t n = strlen(path), k = strlen(suffix);

	return n > k && !strcmp(path + n - k, suffix);
}

/* What is not said follows from what lies there. */
static int guess_kind(const char *path, enum ptc_source_kind *ret_kind, struct ptc_error *err)
{
	if (exists(path, "", S_IFDIR))
		*ret_kind = PTC_SOURCE_FILES;
	else if (ends_in(path, ".npy"))
		*ret_kind = PTC_SOURCE_NPY;
	else if (ends_in(path, ".idx") || exists(path, ".idx", S_IFREG))
		*ret_kind = PTC_SOURCE_INDEXED;
	else
		return ctl_usage(err, "cannot tell what %.800s is; say --kind indexed, flat, npy or files", path);
	return 0;
}

static int get_spec(const struct ctl *c, struct ptc_source_spec *spec, struct ptc_error *err)
{
	const char *kind = ctl_option(c, "kind"), *dtype = ctl_option(c, "dtype"), *record = ctl_option(c, "record");
	int rc = 0;

	if (dtype && !ptc_source_dtype_parse(dtype, &spec->dtype))
		return ctl_usage(err,
				 "--dtype \"%.40s\" is not supported; docs/dataset.md lists the names, such as uint16",
				 dtype);
	if (record)
		rc = ctl_number("--record", record, 1, PTC_SOURCE_RECORD_MAX - 1, &spec->record, err);
	if (!rc && kind && !ptc_source_kind_parse(kind, &spec->kind))
		return ctl_usage(err, "--kind is indexed, flat, npy or files, not \"%.40s\"", kind);
	if (!rc && !kind)
		rc = guess_kind(spec->path, &spec->kind, err);
	if (!rc && spec->kind == PTC_SOURCE_FLAT && (!spec->dtype || !spec->record))
		return ctl_usage(err, "a flat file needs --dtype and --record");
	return rc;
}

/* An absolute path, the same for every process on every node that has the file system; of an indexed one without its
 * ending. */
static int absolute(const char *path, enum ptc_source_kind kind, char *ret, size_t size, struct ptc_error *err)
{
	size_t n = strlen(path);
	bool cut = kind == PTC_SOURCE_INDEXED && (ends_in(path, ".bin") || ends_in(path, ".idx"));
	ptc_auto_free char *name =
		ptc_asprintf("%.*s%s", (int)(cut ? n - 4 : n), path, kind == PTC_SOURCE_INDEXED ? ".idx" : "");
	char *real = name ? realpath(name, NULL) : NULL;

	if (!real)
		return ptc_error_errno(err, errno, "cannot open %s", name ? name : path);
	n = strlen(real);
	if (kind == PTC_SOURCE_INDEXED && ends_in(real, ".idx"))
		n -= 4;
	if (n < size) {
		memcpy(ret, real, n);
		ret[n] = '\0';
	}
	free(real);
	return n < size ? 0
			: ptc_error_set(err, PTC_ELIMIT, "the path has %zu bytes, at most %zu are supported", n,
					size - 1);
}

/* ---- check ---- */

struct problems {
	json_t *list;
	const char *first; /* borrowed from list */
	uint64_t n;
};

static int problem(void *arg, const char *text)
{
	struct problems *p = arg;

	if (p->n++ < MAX_PROBLEMS)
		json_array_append_new(p->list, json_string(text));
	if (!p->first)
		p->first = json_string_value(json_array_get(p->list, 0));
	return 0;
}

static json_t *check_json(const char *name, const struct ptc_source_info *info, const struct ptc_source_checked *c,
			  const struct problems *p)
{
	return json_pack("{s:i, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:O}", "version", 1, "dataset", name, "kind",
			 ptc_source_kind_name(info->kind), "samples", (json_int_t)info->samples, "sample_bytes",
			 (json_int_t)c->bytes, "longest_bytes", (json_int_t)c->longest, "unused_bytes",
			 (json_int_t)c->unused, "wrong", (json_int_t)p->n, "problems", p->list);
}

static void print_check(const char *name, const struct ptc_source_info *info, const struct ptc_source_checked *checked,
			const struct problems *p)
{
	char bytes[32], longest[32];
	json_t *line;
	size_t i;

	json_array_foreach(p->list, i, line)
		printf("%s\n", json_string_value(line));
	printf("%s: %" PRIu64 " samples, %s, the longest %s", name, info->samples,
	       ctl_bytes(checked->bytes, bytes, sizeof bytes), ctl_bytes(checked->longest, longest, sizeof longest));
	if (checked->unused)
		printf(", %s in no sample", ctl_bytes(checked->unused, bytes, sizeof bytes));
	printf(p->n ? ": %" PRIu64 " things are wrong\n" : ": nothing wrong\n", p->n);
}

/* Goes on after a fingerprint that differs: what is wrong besides is worth knowing. */
static int check_source(const struct ptc_source *s, const struct ptc_source_print *was, struct problems *p,
			struct ptc_source_checked *ret_checked, struct ptc_error *err)
{
	struct ptc_error differs = PTC_ERROR_INIT;
	struct ptc_source_print now;
	int rc = was ? ptc_source_print(s, was->whole, &now, err) : 0;

	if (!rc && was && ptc_source_same(s, was, &now, &differs))
		problem(p, differs.text);
	return rc ? rc : ptc_source_check(s, problem, p, ret_checked, err);
}

/* ---- add ---- */

static const struct ctl_option add_options[] = {
	{ "kind", "KIND", "indexed, flat, npy or files; needed only if ptc cannot tell it from the path" },
	{ "dtype", "DTYPE", "dtype of the elements, by its NumPy name; required for a flat file" },
	{ "record", "N", "elements of a sample; required for a flat file, and for an array of one dimension" },
	{ "here", NULL, "only this node has the files; other nodes read them from this node" },
};

static int look(const struct ctl *c, struct ptc_dataset_doc *doc, struct ptc_error *err)
{
	struct problems p = { .list = json_array() };
	struct ptc_source_checked checked = { 0 };
	struct ptc_source_spec spec = { .path = c->args[1] };
	struct ptc_source *s = NULL;
	int rc = get_spec(c, &spec, err);

	if (!rc)
		rc = absolute(c->args[1], spec.kind, doc->path, sizeof doc->path, err);
	spec.path = doc->path;
	if (!rc)
		rc = ptc_source_open(&spec, &s, err);
	if (!rc)
		rc = ptc_source_print(s, true, &doc->print, err);
	/* Of an array all bytes would be read, and nothing in it can be wrong. */
	if (!rc && (spec.kind == PTC_SOURCE_INDEXED || spec.kind == PTC_SOURCE_FILES))
		rc = check_source(s, NULL, &p, &checked, err);
	if (!rc && p.n)
		rc = ptc_error_set(err, PTC_EINVAL, "%.700s (%" PRIu64 " thing%s wrong)", p.first, p.n,
				   p.n > 1 ? "s are" : " is");
	if (!rc) {
		doc->info = *ptc_source_info(s);
		doc->longest_bytes = doc->info.record * ptc_source_dtype_bytes(doc->info.dtype);
		doc->longest_bytes = PTC_MAX(doc->longest_bytes, checked.longest);
	}
	ptc_source_close(s);
	json_decref(p.list);
	return rc;
}

static int run_add(struct ctl *c, struct ptc_error *err)
{
	ptc_auto_free struct ptc_dataset_doc *doc = ptc_calloc(1, sizeof *doc);
	ptc_auto_free char *json = NULL;
	int rc = doc ? ptc_name_check_job(c->args[0], err) : ptc_nomem(err);

	if (!rc)
		rc = look(c, doc, err);
	if (rc)
		return rc;
	snprintf(doc->name, sizeof doc->name, "%s", c->args[0]);
	json = ptc_dataset_doc_encode(doc);
	if (!json)
		return ptc_nomem(err);
	rc = ctl_connect(c, err);
	if (!rc)
		rc = ptc_admin_dataset_add(c->admin, json, ctl_option(c, "here") != NULL, err);
	return rc ? rc : ctl_print(c, json, err);
}

const struct ctl_verb ctl_dataset_add = {
	.name = "dataset add",
	.args = "NAME PATH",
	.about = "Register samples that lie under a path",
	.help = "Nothing is copied. Unless --here is given, the path must lead to the same files on every\n"
		"node. While the dataset is added, the daemon reads its index, or lists every file of its\n"
		"directory. The daemon keeps sizes, times and digests. By these it notices later that a file\n"
		"has changed.\n",
	CTL_OPTIONS(add_options),
	.min_args = 2,
	.max_args = 2,
	.run = run_add,
};

/* ---- list, remove ---- */

static const struct ctl_column columns[] = {
	{ "name", NULL, NULL },   { "kind", NULL, NULL },    { "dtype", NULL, NULL },
	{ "record", NULL, NULL }, { "samples", NULL, NULL }, { "documents", NULL, NULL },
	{ "bytes", NULL, NULL },  { "node", NULL, NULL },    { "path", NULL, NULL },
};

static int run_list(struct ctl *c, struct ptc_error *err)
{
	char *json = NULL;
	int rc = ctl_connect(c, err);

	if (!rc)
		rc = ptc_admin_dataset_list(c->admin, &json, err);
	if (!rc)
		rc = ctl_print_columns(c, json, "datasets", columns, PTC_ARRAY_LEN(columns), err);
	ptc_admin_free(json);
	return rc;
}

const struct ctl_verb ctl_dataset_list = {
	.name = "dataset list",
	.args = "",
	.about = "List the datasets you may see",
	.run = run_list,
};

static int run_remove(struct ctl *c, struct ptc_error *err)
{
	int rc = ctl_connect(c, err);

	return rc ? rc : ptc_admin_dataset_remove(c->admin, c->args[0], err);
}

const struct ctl_verb ctl_dataset_remove = {
	.name = "dataset remove",
	.args = "NAME",
	.about = "Forget a dataset; its files stay",
	.min_args = 1,
	.max_args = 1,
	.run = run_remove,
};

/* here: its source is to be opened by us, so it must not lie on another node than the daemon's. */
static int find(struct ctl *c, const char *name, bool here, struct ptc_dataset_doc *ret_doc, struct ptc_error *err)
{
	json_t *root = NULL, *row;
	char *json = NULL;
	const char *node;
	size_t i;
	int rc = ctl_connect(c, err), found = 0;

	if (!rc)
		rc = ptc_admin_dataset_list(c->admin, &json, err);
	if (!rc)
		rc = ptc_json_load("the daemon's answer", json, strlen(json), &root, err);
	json_array_foreach(json_object_get(root, "datasets"), i, row) {
		const char *its = json_string_value(json_object_get(row, "name"));
		int fits = !its || strcmp(its, name) != 0 ? 0 : ptc_json_count(row, "uid") == geteuid() ? 2 : 1;

		if (rc || fits <= found) /* root sees those of others, too: his own comes first */
			continue;
		rc = ptc_dataset_doc_from_json(row, ret_doc, err);
		found = fits;
	}
	if (!rc && !found)
		rc = ptc_error_set(err, PTC_ENOTFOUND, "dataset \"%.80s\" does not exist; see `ptcctl dataset list`",
				   name);
	node = json_string_value(json_object_get(root, "node"));
	if (!rc && here && ret_doc->node[0] && (!node || strcmp(ret_doc->node, node) != 0))
		rc = ptc_error_set(err, PTC_ESTATE, "dataset %s lies on node %s only: run this there", name,
				   ret_doc->node);
	json_decref(root);
	ptc_admin_free(json);
	return rc;
}

static int find_dataset(struct ctl *c, const char *name, struct ptc_dataset_doc *ret_doc, struct ptc_error *err)
{
	return find(c, name, false, ret_doc, err);
}

static int pin(struct ctl *c, struct ptc_job_part *part, bool by_length, struct ptc_dataset_doc *doc,
	       struct ptc_error *err)
{
	char source[33];
	int rc = find_dataset(c, part->dataset, doc, err);

	if (!rc)
		rc = ptc_dataset_doc_source(doc, source);
	if (rc)
		return rc;
	if (by_length && doc->info.kind == PTC_SOURCE_FILES)
		return ptc_error_set(err, PTC_EINVAL,
				     "by_length: the samples of dataset %s are files, which have no length in tokens",
				     doc->name);
	if (part->source[0] && strcmp(part->source, source) != 0)
		return ptc_error_set(err, PTC_ESTATE, "dataset %s has another source than %s: its source is %s",
				     doc->name, part->source, source);
	memcpy(part->source, source, sizeof part->source);
	part->samples = doc->info.samples;
	return 0;
}

int ctl_dataset_pin(struct ctl *c, struct ptc_job_desc *job, struct ptc_error *err)
{
	ptc_auto_free struct ptc_dataset_doc *doc = ptc_calloc(1, sizeof *doc);
	int rc = doc ? 0 : ptc_nomem(err);

	for (size_t i = 0; i < job->ndata; i++)
		for (uint32_t k = 0; k < job->data[i].nparts && !rc; k++)
			if ((rc = pin(c, &job->data[i].parts[k], job->data[i].by_length, doc, err)))
				ptc_error_wrap(err, "data %s", job->data[i].name);
	return rc;
}

/* ---- check ---- */

static int check_registered(struct ctl *c, const struct ptc_dataset_doc *doc, struct problems *p, struct ptc_error *err)
{
	struct ptc_source_spec spec = ptc_dataset_doc_spec(doc);
	struct ptc_source_checked checked;
	struct ptc_source *s = NULL;
	int rc = ptc_source_open(&spec, &s, err);

	if (!rc)
		rc = check_source(s, &doc->print, p, &checked, err);
	if (!rc && c->json) {
		json_t *root = check_json(doc->name, ptc_source_info(s), &checked, p);
		ptc_auto_free char *text = root ? ptc_json_text(root) : NULL;

		json_decref(root);
		rc = text ? ctl_print(c, text, err) : ptc_nomem(err);
	} else if (!rc) {
		print_check(doc->name, ptc_source_info(s), &checked, p);
	}
	ptc_source_close(s);
	if (!rc && p->n)
		rc = ptc_error_set(err, PTC_ECORRUPT, "dataset %s: %" PRIu64 " thing%s wrong%s", doc->name, p->n,
				   p->n > 1 ? "s are" : " is", p->n > MAX_PROBLEMS ? "; the first are printed" : "");
	return rc;
}

static int run_check(struct ctl *c, struct ptc_error *err)
{
	ptc_auto_free struct ptc_dataset_doc *doc = ptc_calloc(1, sizeof *doc);
	struct problems p = { .list = json_array() };
	int rc = doc && p.list ? 0 : ptc_nomem(err);

	if (!rc)
		rc = find(c, c->args[0], true, doc, err);
	if (!rc)
		rc = check_registered(c, doc, &p, err);
	json_decref(p.list);
	return rc;
}

const struct ctl_verb ctl_dataset_check = {
	.name = "dataset check",
	.args = "NAME",
	.about = "Check all files of a dataset, and whether they have changed since it was added",
	.help = "Each error is one line, with the file and the place in the file. The check looks at every\n"
		"sequence of an index and at each file of a directory, and reads an array from end to end.\n"
		"The exit status is 1 if anything is wrong.\n",
	.min_args = 1,
	.max_args = 1,
	.run = run_check,
};

/* ---- inspect ---- */

static const struct ctl_option inspect_options[] = {
	{ "sample", "I", "number of the sample (default 0)" },
	{ "at", "K", "instead of --sample: the sample at place K of an epoch's order" },
	{ "seed", "S", "with --at: the order's seed (default 0)" },
	{ "epoch", "E", "with --at: the epoch (default 0)" },
	{ "elements", "N", "number of the sample's elements to show (default 16)" },
};

static double half(uint16_t h)
{
	uint32_t sign = (uint32_t)(h >> 15) << 31, e = h >> 10 & 31, m = h & 1023;
	float f;

	if (e == 0)
		return (sign ? -1.0 : 1.0) * m / (1 << 24);
	m = sign | (e == 31 ? 255u : e + 112) << 23 | m << 13;
	memcpy(&f, &m, sizeof f);
	return (double)f;
}

static json_t *element(enum ptc_source_dtype dtype, const unsigned char *p)
{
	uint32_t bytes = ptc_source_dtype_bytes(dtype);
	uint64_t v = 0;
	double d;
	float f;

	for (uint32_t i = bytes; i-- > 0;)
		v = v << 8 | p[i];
	switch (dtype) {
	case PTC_SOURCE_F64:
		memcpy(&d, &v, sizeof d);
		return json_real(d);
	case PTC_SOURCE_F32:
		memcpy(&f, p, sizeof f);
		return json_real((double)f);
	case PTC_SOURCE_F16:
		return json_real(half((uint16_t)v));
	case PTC_SOURCE_I8:
	case PTC_SOURCE_I16:
	case PTC_SOURCE_I32:
		return json_integer((json_int_t)(v << (64 - 8 * bytes)) >> (64 - 8 * bytes));
	default:
		return json_integer((json_int_t)v);
	}
}

static int add_elements(const struct ptc_source *s, uint64_t i, uint64_t length, uint64_t n, json_t *root,
			struct ptc_error *err)
{
	enum ptc_source_dtype dtype = ptc_source_info(s)->dtype;
	uint32_t bytes = ptc_source_dtype_bytes(dtype);
	unsigned char buf[8 * MAX_ELEMENTS];
	json_t *list;
	int rc;

	if (!bytes)
		return 0;
	n = PTC_MIN(n, length / bytes);
	rc = ptc_source_read(s, i, 0, buf, n * bytes, err);
	if (rc)
		return rc;
	list = json_array();
	for (uint64_t k = 0; k < n; k++) { /* what JSON has no number for is null */
		json_t *e = element(dtype, buf + k * bytes);

		json_array_append_new(list, e ? e : json_null());
	}
	json_object_set_new(root, "elements", list);
	return 0;
}

struct wanted {
	uint64_t sample, at, seed, epoch, elements;
	bool ordered;
};

static int get_wanted(const struct ctl *c, struct wanted *w, struct ptc_error *err)
{
	const struct {
		const char *name;
		uint64_t *value, max;
	} numbers[] = {
		{ "sample", &w->sample, UINT64_MAX },       { "at", &w->at, UINT64_MAX },
		{ "seed", &w->seed, UINT64_MAX },           { "epoch", &w->epoch, UINT64_MAX },
		{ "elements", &w->elements, MAX_ELEMENTS },
	};

	w->ordered = ctl_option(c, "at") != NULL;
	for (size_t i = 0; i < PTC_ARRAY_LEN(numbers); i++) {
		const char *text = ctl_option(c, numbers[i].name);
		char label[16];
		int rc;

		snprintf(label, sizeof label, "--%s", numbers[i].name);
		rc = text ? ctl_number(label, text, 0, numbers[i].max, numbers[i].value, err) : 0;
		if (rc)
			return rc;
	}
	if (w->ordered && ctl_option(c, "sample"))
		return ctl_usage(err, "needs --sample I or --at K, not both");
	if (!w->ordered && (ctl_option(c, "seed") || ctl_option(c, "epoch")))
		return ctl_usage(err, "--seed and --epoch say which sample is at a place; they need --at K");
	return 0;
}

static int inspect(struct ctl *c, const struct ptc_dataset_doc *doc, const struct ptc_source *s, struct wanted *w,
		   struct ptc_error *err)
{
	struct ptc_source_sample at;
	struct ptc_order order;
	ptc_auto_free char *text = NULL;
	json_t *root;
	int rc;

	if (w->ordered) {
		if (!ptc_order_init(&order, doc->info.samples, w->seed))
			return ptc_error_set(err, PTC_ELIMIT, "an order has at most 2^63 samples");
		w->sample = ptc_order_at(&order, w->epoch, w->at);
		if (w->sample == PTC_ORDER_NONE)
			return ptc_error_set(err, PTC_EINVAL, "an epoch has places 0 to %" PRIu64 ", no %" PRIu64,
					     doc->info.samples - 1, w->at);
	}
	rc = ptc_source_sample(s, w->sample, &at, err);
	if (rc)
		return rc;
	root = json_pack("{s:i, s:s, s:s, s:s, s:I, s:I, s:s, s:I, s:I}", "version", 1, "dataset", doc->name, "kind",
			 ptc_source_kind_name(doc->info.kind), "dtype", ptc_source_dtype_name(doc->info.dtype),
			 "samples", (json_int_t)doc->info.samples, "sample", (json_int_t)w->sample, "file", at.file,
			 "offset", (json_int_t)at.offset, "bytes", (json_int_t)at.length);
	if (root && w->ordered) {
		json_object_set_new(root, "place", json_integer((json_int_t)w->at));
		json_object_set_new(root, "epoch", json_integer((json_int_t)w->epoch));
	}
	rc = root ? add_elements(s, w->sample, at.length, w->elements, root, err) : 0;
	if (!rc) {
		text = root ? ptc_json_text(root) : NULL;
		rc = text ? ctl_print(c, text, err) : ptc_nomem(err);
	}
	json_decref(root);
	return rc;
}

static int run_inspect(struct ctl *c, struct ptc_error *err)
{
	ptc_auto_free struct ptc_dataset_doc *doc = ptc_calloc(1, sizeof *doc);
	struct wanted w = { .elements = DEFAULT_ELEMENTS };
	struct ptc_source *s = NULL;
	int rc = doc ? get_wanted(c, &w, err) : ptc_nomem(err);

	if (!rc)
		rc = find(c, c->args[0], true, doc, err);
	if (!rc)
		rc = ptc_dataset_doc_open(doc, &s, err);
	if (!rc)
		rc = inspect(c, doc, s, &w, err);
	ptc_source_close(s);
	return rc;
}

const struct ctl_verb ctl_dataset_inspect = {
	.name = "dataset inspect",
	.args = "NAME",
	.about = "Show one sample of a dataset, by number or by its place in the order",
	.help = "docs/order.md defines the order of samples.\n",
	CTL_OPTIONS(inspect_options),
	.min_args = 1,
	.max_args = 1,
	.run = run_inspect,
};
