/* accept4's flags; accept inherits none. */
#include "behaviour.h"

static void show(int fd) { say("%d %d", (fcntl(fd, F_GETFL) & O_NONBLOCK) != 0, fcntl(fd, F_GETFD)); }
int main(void) {
    int s = listener();
    int flags[] = {0, SOCK_NONBLOCK, SOCK_CLOEXEC, SOCK_NONBLOCK | SOCK_CLOEXEC};
    for (int i = 0; i < 4; i++) {
        dial(s);
        int a = MUST(accept4(s, NULL, NULL, flags[i]));
        show(a);
        char b;
        if (flags[i] & SOCK_NONBLOCK) TRY(read(a, &b, 1));
    }
    TRY(accept4(s, NULL, NULL, 0x40000000));
    nonblocking(s);
    TRY(accept(s, NULL, NULL));
    dial(s);
    await(s, POLLIN);
    show(MUST(accept(s, NULL, NULL)));
}
