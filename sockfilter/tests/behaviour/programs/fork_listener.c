/* Two children accept from the listener that their parent made, which closes its own. */
#include "behaviour.h"

int main(void) {
    int s = listener();
    pid_t children[2];
    for (int i = 0; i < 2; i++) {
        children[i] = MUST(fork());
        if (children[i] == 0) {
            /* One connection each, so that both must serve. */
            int c = MUST(accept(s, NULL, NULL));
            char byte;
            MUST(recv(c, &byte, 1, 0));
            MUST(send(c, &byte, 1, 0));
            MUST(recv(c, &byte, 1, 0));
            _exit(0);
        }
    }
    int c[2];
    char byte[2];
    for (int i = 0; i < 2; i++) {
        c[i] = dial(s);
        MUST(send(c[i], "12" + i, 1, 0));
        MUST(recv(c[i], &byte[i], 1, 0));
    }
    say("%.2s", byte);
    close(s);
    for (int i = 0; i < 2; i++) close(c[i]);
    for (int i = 0; i < 2; i++) {
        int status;
        MUST(waitpid(children[i], &status, 0));
        say("ended with %d", status);
    }
}
