/* SPDX-License-Identifier: Apache-2.0 */
/* ptc's own documents of a checkpoint. ptc.json:
 *
 *   {"version": 1, "job", "uuid", "config", "generation", "snapshot", "step", "created_ms",
 *    "metadata": the hash of .metadata,
 *    "digests": {KEY: 16 digits}           a tensor of an item: its committed digest; a value: the digest of its part
 *    "documents": {"state": HASH, "ledger": HASH, "layout": HASH}}
 *        ptc-state.json, ptc-ledger.json and ptc-layout.json, if they are there
 *
 * Failure modes: PTC_EDIGEST (a document is not the one that ptc.json names), PTC_EVERSION, PTC_EINVAL, those of files.
 */
#include "client/ctl/checkpoint/checkpoint_parts.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/number/digest.h"
#include "base/sys/sys.h"
#include "formats/state/layout_doc.h"
#include "formats/state/state_doc.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>

#define DOCUMENT_MAX (512u << 20)
#define LEDGER_MAX   (16u << 20)

/* ---- writing ---- */

static int set_digests(json_t *digests, const struct ctl_ck_plan *p, const struct ptc_admin_export *info,
		       struct ptc_error *err)
{
	char text[17];
	int rc = 0;

	for (size_t i = 0; i < p->d.nentries && !rc; i++) {
		const struct ctl_ck_content *content = &p->contents[i];

		snprintf(text, sizeof text, "%016" PRIx64,
			 content->data ? ptc_digest_run(content->data, content->len) : info->digests[content->item]);
		rc = json_object_set_new(digests, p->d.entries[i].key, json_string(text));
	}
	return rc ? ptc_nomem(err) : 0;
}

/* Its hash into `documents`. */
static int write_document(const char *dir, const char *file, const char *name, const void *data, size_t len,
			  json_t *documents, struct ptc_error *err)
{
	ptc_auto_free char *path = ptc_asprintf("%s/%s", dir, file);
	char hash[33];

	if (!len)
		return 0;
	ptc_content_hash(data, len, hash);
	if (!path || json_object_set_new(documents, name, json_string(hash)))
		return ptc_nomem(err);
	return ptc_sys_write_file(path, data, len, 0644, "checkpoint.document", err);
}

static json_t *head(const char *job, const struct ptc_admin_export *info, const void *metadata, size_t len)
{
	char hash[33];

	ptc_content_hash(metadata, len, hash);
	return json_pack("{s:i, s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:s, s:{}, s:{}}", "version", CTL_CK_VERSION, "job",
			 job, "uuid", info->uuid, "config", info->config, "generation", (json_int_t)info->generation,
			 "snapshot", (json_int_t)info->snapshot, "step", (json_int_t)info->step, "created_ms",
			 (json_int_t)ptc_sys_realtime_ms(), "metadata", hash, "documents", "digests");
}

int ctl_ck_write_documents(const char *dir, const char *job, const struct ptc_admin_export *info,
			   const struct ctl_ck_plan *p, const void *metadata, size_t len, struct ptc_error *err)
{
	ptc_auto_free char *path = ptc_asprintf("%s/" CTL_CK_DOCUMENT, dir), *text = NULL;
	json_t *root = head(job, info, metadata, len), *documents = json_object_get(root, "documents");
	int rc = path && root ? set_digests(json_object_get(root, "digests"), p, info, err) : ptc_nomem(err);

	if (!rc)
		rc = write_document(dir, CTL_CK_STATE, "state", info->state, info->state_len, documents, err);
	if (!rc)
		rc = write_document(dir, CTL_CK_LEDGER, "ledger", info->ledger, info->ledger_len, documents, err);
	if (!rc && info->declared)
		rc = write_document(dir, CTL_CK_LAYOUT, "layout", info->layout_json, info->layout_len, documents, err);
	if (!rc) {
		text = ptc_json_text(root);
		rc = text ? ptc_sys_write_file(path, text, strlen(text), 0644, "checkpoint.document", err)
			  : ptc_nomem(err);
	}
	json_decref(root);
	return rc;
}

/* ---- reading ---- */

bool ctl_ck_is(const char *path)
{
	ptc_auto_free char *metadata = ptc_asprintf("%s/" PTC_DCP_METADATA, path);
	struct stat sb;

	return metadata && !stat(metadata, &sb) && S_ISREG(sb.st_mode);
}

static int read_metadata(struct ctl_ck_source *s, char *ret_hash, struct ptc_error *err)
{
	ptc_auto_free char *path = ptc_asprintf("%s/" PTC_DCP_METADATA, s->dir), *data = NULL;
	size_t len;
	int rc = path ? ptc_sys_read_file(path, PTC_PICKLE_MAX_BYTES, &data, &len, err) : ptc_nomem(err);

	if (rc)
		return rc;
	ptc_content_hash(data, len, ret_hash);
	rc = ptc_dcp_read(data, len, &s->d, err);
	return rc ? ptc_error_wrap(err, "%s", s->dir) : 0;
}

/* A document that ptc.json names, whole. */
static int read_document(const struct ctl_ck_source *s, const char *file, const char *name, size_t max, char **ret,
			 size_t *ret_len, struct ptc_error *err)
{
	const char *want = json_string_value(json_object_get(json_object_get(s->root, "documents"), name));
	ptc_auto_free char *path = ptc_asprintf("%s/%s", s->dir, file), *data = NULL;
	char hash[33];
	int rc;

	if (!want)
		return 0;
	rc = path ? ptc_sys_read_file(path, max, &data, ret_len, err) : ptc_nomem(err);
	if (rc)
		return rc;
	ptc_content_hash(data, *ret_len, hash);
	if (strcmp(hash, want) != 0)
		return ptc_error_set(err, PTC_EDIGEST, "%s: its hash is %s, " CTL_CK_DOCUMENT " says %.40s", path, hash,
				     want);
	*ret = data;
	data = NULL;
	return 0;
}

static int read_own(struct ctl_ck_source *s, const char *path, const char *hash, struct ptc_error *err)
{
	const char *want;
	size_t len;
	int rc = ptc_sys_read_file(path, DOCUMENT_MAX, &s->document, &len, err);

	if (!rc)
		rc = ptc_json_load(path, s->document, len, &s->root, err);
	if (!rc)
		rc = ptc_json_version(path, s->root, CTL_CK_VERSION, CTL_CK_VERSION, err);
	if (rc)
		return rc;
	want = json_string_value(json_object_get(s->root, "metadata"));
	if (!want || strcmp(want, hash) != 0)
		return ptc_error_set(err, PTC_EDIGEST,
				     "%s/" PTC_DCP_METADATA ": its hash is %s, " CTL_CK_DOCUMENT " says %.40s", s->dir,
				     hash, want ? want : "nothing");
	s->resume = (struct ptc_admin_resume){ .size = sizeof s->resume, .step = ptc_json_count(s->root, "step") };
	rc = read_document(s, CTL_CK_STATE, "state", PTC_STATE_DOC_MAX_BYTES, &s->state, &s->resume.state_len, err);
	if (!rc)
		rc = read_document(s, CTL_CK_LEDGER, "ledger", LEDGER_MAX, &s->ledger, &s->resume.ledger_len, err);
	if (!rc)
		rc = read_document(s, CTL_CK_LAYOUT, "layout", PTC_LAYOUT_DOC_MAX_BYTES, &s->layout, &s->layout_len,
				   err);
	s->config = json_string_value(json_object_get(s->root, "config"));
	s->resume.state = s->state;
	s->resume.ledger = s->ledger;
	return rc;
}

int ctl_ck_open(const char *dir, struct ctl_ck_source *ret, struct ptc_error *err)
{
	struct ctl_ck_source s = { .dir = ptc_strdup(dir), .resume = { .size = sizeof s.resume } };
	ptc_auto_free char *path = ptc_asprintf("%s/" CTL_CK_DOCUMENT, dir);
	struct stat sb;
	char hash[33];
	int rc = s.dir && path ? read_metadata(&s, hash, err) : ptc_nomem(err);

	if (!rc && (!stat(path, &sb) || errno != ENOENT))
		rc = read_own(&s, path, hash, err);
	if (rc)
		ctl_ck_close(&s);
	else
		*ret = s;
	return rc;
}

void ctl_ck_close(struct ctl_ck_source *s)
{
	ptc_free(s->dir);
	ptc_dcp_done(&s->d);
	ptc_free(s->document);
	json_decref(s->root);
	ptc_free(s->state);
	ptc_free(s->ledger);
	ptc_free(s->layout);
	*s = (struct ctl_ck_source){ 0 };
}

bool ctl_ck_digest(const struct ctl_ck_source *s, const char *key, uint64_t *ret)
{
	const char *text = json_string_value(json_object_get(json_object_get(s->root, "digests"), key));

	return text && sscanf(text, "%16" SCNx64, ret) == 1;
}
