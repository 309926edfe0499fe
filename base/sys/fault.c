/* SPDX-License-Identifier: Apache-2.0 */
#include "base/sys/fault.h"

#include "base/log.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MAX_RULES 16
#define MAX_SEEN  512

bool ptc_fault_armed;

static struct rule {
	char name[96];
	long countdown;
	bool always;
	enum act { ACT_KILL, ACT_FAIL, ACT_SLEEP, ACT_HOLD, ACT_STOP } act;
} rules[MAX_RULES];
static size_t nrules;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const char *list_path, *rules_path;
static struct stat rules_stat; /* of the file, as last read */
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
	r->always = nth && strcmp(nth, "*") == 0;
	r->countdown = nth ? strtol(nth, NULL, 10) : 1;
	r->act = !action || strcmp(action, "kill") == 0 ? ACT_KILL
		 : strcmp(action, "sleep") == 0         ? ACT_SLEEP
		 : strcmp(action, "hold") == 0          ? ACT_HOLD
		 : strcmp(action, "stop") == 0          ? ACT_STOP
							: ACT_FAIL;
	nrules++;
}

static void parse_rules(const char *text)
{
	char copy[1024];
	char *save = NULL;

	snprintf(copy, sizeof copy, "%s", text);
	nrules = 0;
	for (char *t = strtok_r(copy, ",\n", &save); t; t = strtok_r(NULL, ",\n", &save))
		parse_rule(t);
}

void ptc_fault_init(void)
{
	const char *env = getenv("PTC_FAULT");

	list_path = getenv("PTC_FAULT_LIST");
	rules_path = getenv("PTC_FAULT_FILE");
	if (env && *env) {
		parse_rules(env);
		ptc_warn("fault", "armed for a test: PTC_FAULT=%s", env);
	}
	ptc_fault_armed = nrules > 0 || list_path || rules_path;
}

/* A test arms a process that runs by renaming a file into place. */
static void reread_locked(void)
{
	char text[1024];
	struct stat st;
	size_t n;
	FILE *f;

	if (stat(rules_path, &st) != 0 ||
	    (st.st_ino == rules_stat.st_ino && st.st_mtim.tv_sec == rules_stat.st_mtim.tv_sec &&
	     st.st_mtim.tv_nsec == rules_stat.st_mtim.tv_nsec))
		return;
	f = fopen(rules_path, "re");
	if (!f)
		return;
	n = fread(text, 1, sizeof text - 1, f);
	fclose(f);
	text[n] = '\0';
	rules_stat = st;
	nseen = 0;
	parse_rules(text);
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

/* Tests only: nobody tells us of a file that is renamed. */
static void hold(const char *name)
{
	const struct timespec look = { .tv_nsec = 10000000 };

	for (bool held = rules_path; held;) {
		nanosleep(&look, NULL);
		pthread_mutex_lock(&lock);
		reread_locked();
		held = false;
		for (size_t i = 0; i < nrules; i++)
			held |= rules[i].act == ACT_HOLD && strcmp(rules[i].name, name) == 0;
		pthread_mutex_unlock(&lock);
	}
}

bool ptc_fault_hit(const char *name)
{
	bool fail = false, nap = false, stop = false, holds = false;

	pthread_mutex_lock(&lock);
	if (rules_path)
		reread_locked();
	if (list_path)
		list_locked(name);
	for (size_t i = 0; i < nrules; i++) {
		if (strcmp(rules[i].name, name) != 0 || (!rules[i].always && --rules[i].countdown != 0))
			continue;
		fail |= rules[i].act == ACT_FAIL;
		nap |= rules[i].act == ACT_SLEEP;
		holds |= rules[i].act == ACT_HOLD;
		stop |= rules[i].act == ACT_STOP;
		if (rules[i].act == ACT_KILL)
			kill(getpid(), SIGKILL);
	}
	pthread_mutex_unlock(&lock);
	if (stop)
		kill(getpid(), SIGSTOP);
	if (holds)
		hold(name);
	if (nap)
		nanosleep(&(struct timespec){ .tv_sec = 1 }, NULL);
	return fail;
}
