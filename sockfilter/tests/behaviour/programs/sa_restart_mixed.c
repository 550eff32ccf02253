/* With handlers of both kinds each signal does as its own handler asks (one thread). */
#include "behaviour.h"

static volatile int restarting, interrupting;
static struct ends e;
static void one(int s) { restarting++; }
static void other(int s) { interrupting++; }
int main(void) {
    struct sigaction a = {.sa_handler = one, .sa_flags = SA_RESTART}, b = {.sa_handler = other};
    sigaction(SIGUSR1, &a, NULL);
    sigaction(SIGUSR2, &b, NULL);
    int p[2];
    MUST(pipe(p));
    pid_t parent = getpid(), child = fork();
    char c;
    if (child == 0) {
        read(p[0], &c, 1);
        await_asleep(parent);
        kill(parent, SIGUSR1);
        await_asleep(parent);
        kill(parent, SIGUSR2);
        _exit(0);
    }
    e = ends();
    write(p[1], "x", 1);
    TRY(read(e.server, &c, 1));
    say("%d %d", restarting, interrupting);
    waitpid(child, NULL, 0);
}
