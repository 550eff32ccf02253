/* A listener outlives exec where the program gives the new one an environment of its own, or clears its own before (Dovecot), by every
 * function of the family, in children of fork and of vfork. */
#include "behaviour.h"
#include <spawn.h>

enum { AT = 5 };
static char self[256];
static char *const nothing[] = {NULL};
extern char **environ;

static int serve(int count, char **arguments) {
    int c = MUST(accept(AT, NULL, NULL));
    char byte;
    MUST(recv(c, &byte, 1, 0));
    say("%s, %d arguments, the last is %s", arguments[2], count, arguments[count - 1]);
    MUST(send(c, &byte, 1, 0));
    return 0;
}

#define LIST "program", "serve"
#define MANY "a", "b", "c", "d", "e", "f", "g", "h", "the last"

/* Executes this program by function `way`; comes back where that failed. */
static void execute(int way) {
    char *names[] = {"execv", "execvp", "execve", "execvpe", "fexecve", "execveat"};
    char *arguments[] = {LIST, way < 6 ? names[way] : "", NULL};
    switch (way) {
    case 0: execv(self, arguments); break;
    case 1: execvp(self, arguments); break;
    case 2: execve(self, arguments, nothing); break;
    case 3: execvpe(self, arguments, nothing); break;
    case 4: fexecve(open(self, O_RDONLY | O_CLOEXEC), arguments, nothing); break;
    case 5: execveat(AT_FDCWD, self, arguments, NULL, 0); break;
    case 6: execl(self, LIST, "execl", NULL); break;
    case 7: execl(self, LIST, "execl", MANY, NULL); break;
    case 8: execlp(self, LIST, "execlp", MANY, NULL); break;
    case 9: execle(self, LIST, "execle", NULL, nothing); break;
    case 10: execle(self, LIST, "execle", MANY, NULL, nothing); break;
    }
    _exit(98);
}

enum { WAYS = 11 };

static void ask(int s, pid_t child) {
    int status, c = dial(s);
    char byte = 'x';
    MUST(send(c, &byte, 1, 0));
    TRY(recv(c, &byte, 1, 0));
    MUST(waitpid(child, &status, 0));
    TRY(status);
    close(c);
}

int main(int count, char **arguments) {
    if (count > 1) return serve(count, arguments);
    MUST(readlink("/proc/self/exe", self, sizeof self - 1));
    int s = listener();
    MUST(fcntl(s, F_SETFD, FD_CLOEXEC));
    for (int way = 0; way < WAYS; way++) {
        pid_t child = MUST(fork());
        if (child == 0) {
            MUST(dup2(s, AT));
            clearenv();
            execute(way);
        }
        ask(s, child);
    }
    for (int way = 0; way < WAYS; way++) {
        /* The child of vfork has this memory. */
        char **kept = environ;
        environ = (char **)nothing;
        pid_t child = vfork();
        if (child == 0) {
            dup2(s, AT);
            execute(way);
        }
        environ = kept;
        ask(s, MUST(child));
    }
    MUST(dup2(s, AT));
    pid_t child;
    char *list[] = {LIST, "posix_spawn", NULL};
    TRY(posix_spawn(&child, self, NULL, NULL, list, nothing));
    ask(s, child);
}
