/* A thread that sleeps in a call is woken at once by what arrives, though another thread has looked at the connections
 * meanwhile, and is away again. The other end is another process: nobody else looks here. */
#include "behaviour.h"

static int waits_at = -1;

static void *sleeper(void *how) {
    char byte = 0;
    struct pollfd p = {.fd = waits_at, .events = POLLIN};
    if (how) TRY(poll(&p, 1, -1));
    TRY(recv(waits_at, &byte, 1, 0));
    say("%c", byte);
    return NULL;
}

static void once(int l, int how) {
    int go[2], waits[2];
    MUST(pipe(go));
    MUST(pipe(waits));
    pid_t child = MUST(fork());
    char byte = 'w';
    if (child == 0) {
        int a = dial(l), b = dial(l);
        MUST(write(waits[1], &byte, 1));
        MUST(read(go[0], &byte, 1));
        MUST(send(a, "x", 1, 0));
        MUST(read(go[0], &byte, 1));
        close(b);
        _exit(0);
    }
    waits_at = MUST(accept(l, NULL, NULL));
    int other = MUST(accept(l, NULL, NULL));
    MUST(read(waits[0], &byte, 1));
    pthread_t thread;
    pthread_create(&thread, NULL, sleeper, how ? &byte : NULL);
    usleep(1500000); /* so long that nothing wakes the sleeper by time */
    TRY(recv(other, &byte, 1, MSG_DONTWAIT));
    double before = seconds();
    MUST(write(go[1], "g", 1));
    pthread_join(thread, NULL);
    say("at once: %d", seconds() - before < 5); /* a thread that is not woken sleeps for ever */
    MUST(write(go[1], "g", 1));
    MUST(waitpid(child, NULL, 0));
}

int main(void) {
    int l = listener();
    once(l, 0);
    once(l, 1);
}
