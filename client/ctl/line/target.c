/* SPDX-License-Identifier: Apache-2.0 */
/* --config, --gpus and --nodes, checked before anything is asked of a daemon,
 * and where rule sets are looked for. */
#include "client/ctl/line/ctl.h"

#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/limits.h"
#include "reshard/spec/config.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SOURCE_RULES "deploy/rules" /* in a tree with the source */
#define MAX_PARENT   6              /* directories above the program that are searched */

/* "a,b" into a list; the names are cut out of target->names. */
static int split_nodes(struct ctl_target *target, const char *text, struct ptc_error *err)
{
	size_t n = 1;
	char *save = NULL;

	for (const char *p = text; *p; p++)
		n += *p == ',';
	if (n > PTC_MAX_NODES)
		return ctl_usage(err, "--nodes names more than %d nodes", PTC_MAX_NODES);
	target->names = ptc_strdup(text);
	target->nodes = ptc_calloc(n, sizeof *target->nodes);
	if (!target->names || !target->nodes)
		return ptc_nomem(err);
	for (char *p = strtok_r(target->names, ",", &save); p; p = strtok_r(NULL, ",", &save))
		target->nodes[target->t.nnodes++] = p;
	target->t.nodes = target->nodes;
	return target->t.nnodes ? 0 : ctl_usage(err, "--nodes names no node");
}

static int check_config(const char *text, uint32_t gpus, struct ptc_error *err)
{
	struct ptc_config config;
	uint32_t world = 0;

	if (ptc_config_parse(text, &config, err) || ptc_config_world(&config, &world, err))
		return CTL_USAGE;
	if (gpus && world != gpus)
		return ctl_usage(err, "--config has %u ranks, --gpus says %u", world, gpus);
	return 0;
}

int ctl_target_get(const struct ctl *c, const char *job, struct ctl_target *ret_target, struct ptc_error *err)
{
	const char *gpus = ctl_option(c, "gpus"), *nodes = ctl_option(c, "nodes");
	struct ctl_target target = { .t = { .size = sizeof target.t, .job = job, .config = ctl_option(c, "config") } };
	uint64_t n = 0;
	int rc = 0;

	if (gpus)
		rc = ctl_number("--gpus", gpus, 1, PTC_MAX_RANKS, &n, err);
	target.t.gpus = (uint32_t)n;
	if (!rc && target.t.config)
		rc = check_config(target.t.config, target.t.gpus, err);
	if (!rc && nodes)
		rc = split_nodes(&target, nodes, err);
	if (rc) {
		ctl_target_done(&target);
		return rc;
	}
	*ret_target = target;
	return 0;
}

void ctl_target_done(struct ctl_target *target)
{
	ptc_free(target->names);
	ptc_free(target->nodes);
	memset(target, 0, sizeof *target);
}

/* `dir` as seen from the folder of the running program, or with `above` from one of those above it; ptc_free it; NULL:
 * there is none. */
static char *own_rules(const char *dir, int above)
{
	char exe[4096];
	ssize_t n = readlink("/proc/self/exe", exe, sizeof(exe) - 1);

	if (n <= 0)
		return NULL;
	exe[n] = '\0';
	for (int i = 0; i <= above; i++) {
		char *slash = strrchr(exe, '/'), *path;

		if (!slash || slash == exe)
			return NULL;
		*slash = '\0';
		path = ptc_asprintf("%s/%s", exe, dir);
		if (path && !access(path, R_OK | X_OK))
			return path;
		ptc_free(path);
	}
	return NULL;
}

char *ctl_rules_path(void)
{
	const char *env = getenv("PTC_RULES_DIR");
	ptc_auto_free char *installed = own_rules(PTC_RULES_FROM_BIN, 0); /* the tree may have been moved */
	ptc_auto_free char *source = own_rules(SOURCE_RULES, MAX_PARENT - 1);

	return ptc_asprintf("%s%s%s%s%s", env ? env : "", env ? ":" : "", installed ? installed : PTC_RULES_INSTALL_DIR,
			    source ? ":" : "", source ? source : "");
}
