/* Who may bind and listen where a listener is: with and without SO_REUSEADDR, on ports chosen by either side. */
#include "behaviour.h"

static int another(struct sockaddr_in *at, int reuse) {
    int s = MUST(socket(AF_INET, SOCK_STREAM, 0));
    MUST(setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof reuse));
    if (TRY(bind(s, (struct sockaddr *)at, sizeof *at)) == 0) TRY(listen(s, 5));
    return s;
}

int main(void) {
    int on = 1, value = 7;
    socklen_t len = sizeof value;
    struct sockaddr_in any = here(0);
    int first = another(&any, 1);
    struct sockaddr_in at = where(first);
    TRY(getsockopt(first, SOL_SOCKET, SO_REUSEADDR, &value, &len));
    say("%d", value);
    for (int reuse = 0; reuse < 2; reuse++) close(another(&at, reuse));
    pid_t child = MUST(fork());
    if (child == 0) {
        another(&at, 1);
        _exit(0);
    }
    MUST(waitpid(child, NULL, 0));
    /* It still serves. */
    int c = dial(first);
    close(MUST(accept(first, NULL, NULL)));
    close(c);
    TRY(listen(first, 9));
    close(first);
    /* The port is free again, and of two sockets that share it by SO_REUSEADDR one may listen. */
    int second = MUST(socket(AF_INET, SOCK_STREAM, 0)), third = MUST(socket(AF_INET, SOCK_STREAM, 0));
    MUST(setsockopt(second, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on));
    MUST(setsockopt(third, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on));
    TRY(bind(second, (struct sockaddr *)&at, sizeof at));
    TRY(bind(third, (struct sockaddr *)&at, sizeof at));
    TRY(listen(second, 5));
    TRY(listen(third, 5));
    say("%d", where(second).sin_port == at.sin_port);
    close(second);
    TRY(listen(third, 5));
}
