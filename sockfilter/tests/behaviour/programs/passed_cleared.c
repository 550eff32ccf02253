/* A program that cleared its environment starts another one, which inherits no listener and is passed a connection later (Dovecot's
 * login process and its imap process). */
#include "passed.h"

enum { AT = 20 };

int main(int count, char **arguments) {
    if (count > 1) return serve(AT);
    int s = listener(), pair[2], status;
    MUST(fcntl(s, F_SETFD, FD_CLOEXEC));
    MUST(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair));
    pid_t child = MUST(fork());
    if (child == 0) {
        MUST(dup2(pair[1], AT));
        clearenv();
        execl("/proc/self/exe", "program", "serve", NULL);
        _exit(98);
    }
    struct ends e = ends_at(s);
    descriptor(pair[0], e.server);
    close(e.server);
    char byte = 'x';
    MUST(send(e.client, &byte, 1, 0));
    long got = recv(e.client, &byte, 1, 0);
    MUST(waitpid(child, &status, 0));
    TRY(status);
    TRY(got);
}
