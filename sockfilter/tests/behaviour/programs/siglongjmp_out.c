/* A signal handler leaves a call that sleeps by siglongjmp: the connection can still be used, and ends when it is closed. */
#include "behaviour.h"
#include <setjmp.h>

static sigjmp_buf out;
static void jump(int signal) { siglongjmp(out, signal); }

int main(void) {
    struct ends e = ends();
    struct sigaction action = {.sa_handler = jump};
    MUST(sigaction(SIGALRM, &action, NULL));
    char buffer[10];
    for (volatile int i = 0; i < 5; i++) {
        if (sigsetjmp(out, 1) == 0) {
            ualarm(20000, 0);
            if (i % 2) recv(e.server, buffer, 1, 0);
            else poll((struct pollfd[]){{.fd = e.server, .events = POLLIN}}, 1, -1);
            say("came back by itself");
        }
        say("out");
    }
    MUST(send(e.client, "x", 1, 0));
    TRY(recv(e.server, buffer, 1, 0));
    TRY(close(e.server));
    TRY(recv(e.client, buffer, 1, 0));
}
