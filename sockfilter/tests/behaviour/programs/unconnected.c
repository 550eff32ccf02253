/* Reading and writing without a connection. */
// not accelerated: nothing is connected
#include "behaviour.h"

int main(void) {
    int s = MUST(socket(AF_INET, SOCK_STREAM, 0)), l = listener();
    char b[4];
    TRY(read(s, b, 4));
    TRY(send(s, b, 4, MSG_NOSIGNAL));
    TRY(read(l, b, 4));
    TRY(send(l, b, 4, MSG_NOSIGNAL));
    TRY(recv(l, b, 4, MSG_DONTWAIT));
}
