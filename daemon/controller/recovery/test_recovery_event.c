/* SPDX-License-Identifier: Apache-2.0 */
/* Which events a commit writes for a recovery. The log of events is decided here. */
#include "daemon/controller/internal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static char told[300];
static struct ptc_controllers all;
static struct ptc_controller ctl;

struct ptc_event_line *ptc_event_line_new(struct ptc_cluster *c, const char *uuid, const char *kind, const char *fmt,
					  ...)
{
	int len = snprintf(told, sizeof told, "%s: ", kind);
	va_list ap;

	(void)c, (void)uuid;
	va_start(ap, fmt);
	vsnprintf(told + len, sizeof told - (size_t)len, fmt, ap);
	va_end(ap);
	return NULL;
}

static const char *tells(const struct ptc_record_doc *next)
{
	told[0] = '\0';
	(void)ptc_recovery_event(&ctl, next);
	return told;
}

static int begin(void **state)
{
	(void)state;
	memset(&ctl, 0, sizeof ctl);
	ctl.all = &all;
	ctl.has_record = true;
	ctl.record = (struct ptc_record_doc){
		.generation = 3, .snapshot = 9, .step = 90, .run = PTC_RUN_FAILED, .recovery = PTC_RECOVERY_NODE
	};
	return 0;
}

/* A recovery goes back to an older snapshot: told, also by a controller that only goes on with it. A person's rollback
 * has no caller there either, and is none of the recovery. */
static void test_went_back(void **state)
{
	struct ptc_record_doc next = ctl.record;

	(void)state;
	next.generation = 4;
	next.snapshot = 10;
	next.step = 50;
	ctl.intent = (struct ptc_intent_doc){ .kind = PTC_SWITCH_IMPORT, .source = 5 };
	assert_string_equal(tells(&next), "");
	ctl.intent.recovers = true;
	assert_string_equal(tells(&next),
			    "went_back: snapshot 9 of step 90 is lost, so the job goes back to snapshot 5 "
			    "of step 50");
	snprintf(ctl.recovery.waits, sizeof ctl.recovery.waits, "n1 has gone");
	assert_non_null(strstr(tells(&next), "of step 50: n1 has gone"));
	ctl.record.recovery = PTC_RECOVERY_NONE;
	next.recovery = PTC_RECOVERY_NONE;
	assert_string_equal(tells(&next), "");
}

static void test_recovered(void **state)
{
	char config[] = "dp=2";
	struct ptc_record_doc next = ctl.record;

	(void)state;
	ctl.view.to.config = config;
	next.recovery = PTC_RECOVERY_NONE;
	assert_string_equal(tells(&next), ""); /* it does not run */
	next.run = PTC_RUN_LIVE;
	ctl.record.reached = 97;
	assert_string_equal(tells(&next),
			    "recovered: the job goes on from the snapshot of step 90, under dp=2; step 97 "
			    "had been reached: 7 steps are lost");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(test_went_back, begin),
		cmocka_unit_test_setup(test_recovered, begin),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
