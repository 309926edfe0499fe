/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fault.h"

#include "base/log.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_RULES 16
#define MAX_SEEN  512

bool ptc_fault_armed;

static struct rule {
	char name[96];
	long countdown;
	bool fail;
} rules[MAX_RULES];
static size_t nrules;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const char *list_path;
static char seen[MAX_SEEN][96];
static size_t nseen;

static void parse_rule(char *text)
{
	struct rule *r = &rules[nrules];
	char *action = strchr(text, '=');
	char *nth;

	if (nrules == MAX_RULES)
		return;
	if (action)
		*action++ = '\0';
	nth = strchr(text, '@');
	if (nth)
		*nth++ = '\0';
	snprintf(r->name, sizeof r->name, "%s", text);
	r->countdown = nth ? strtol(nth, NULL, 10) : 1;
	r->fail = action && strcmp(action, "fail") == 0;
	nrules++;
}

void ptc_fault_init(void)
{
	const char *env = getenv("PTC_FAULT");
	char copy[1024];
	char *save = NULL;

	list_path = getenv("PTC_FAULT_LIST");
	if (env && *env) {
		snprintf(copy, sizeof copy, "%s", env);
		for (char *t = strtok_r(copy, ",", &save); t; t = strtok_r(NULL, ",", &save))
			parse_rule(t);
		ptc_warn("fault", "armed for a test: PTC_FAULT=%s", env);
	}
	ptc_fault_armed = nrules > 0 || list_path;
}

static void list_locked(const char *name)
{
	FILE *f;

	for (size_t i = 0; i < nseen; i++)
		if (strcmp(seen[i], name) == 0)
			return;
	if (nseen == MAX_SEEN)
		return;
	snprintf(seen[nseen++], sizeof seen[0], "%s", name);
	f = fopen(list_path, "ae");
	if (!f)
		return;
	fprintf(f, "%s\n", name);
	fclose(f);
}

bool ptc_fault_hit(const char *name)
{
	bool fail = false;

	pthread_mutex_lock(&lock);
	if (list_path)
		list_locked(name);
	for (size_t i = 0; i < nrules; i++) {
		if (strcmp(rules[i].name, name) != 0 || --rules[i].countdown != 0)
			continue;
		if (rules[i].fail)
			fail = true;
		else
			kill(getpid(), SIGKILL);
	}
	pthread_mutex_unlock(&lock);
	return fail;
}
