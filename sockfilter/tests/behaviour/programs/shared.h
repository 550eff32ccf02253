/* Runs a body for a connection of this process alone, and for one that it shares: another process has it too, so that
 * the agent carries it. */
#include "behaviour.h"

/* After this, both ends are carried by the agent. */
static inline void share(void) {
    pid_t child = MUST(fork());
    if (child == 0) _exit(0);
    MUST(waitpid(child, NULL, 0));
}

/* Calls the body with a new connection for each of both ways. */
static inline void own_and_shared(void (*body)(struct ends e, const char *who)) {
    static const char *const ways[] = {"own", "shared"};
    for (int way = 0; way < 2; way++) {
        struct ends e = ends();
        if (way) share();
        body(e, ways[way]);
        close(e.client), close(e.server);
    }
}

/* The name of the last error, or "ok". */
static inline const char *outcome(long result) { return result == -1 ? strerrorname_np(errno) : "ok"; }
