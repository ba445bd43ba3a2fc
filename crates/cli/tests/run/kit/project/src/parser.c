#include "parser.h"
#include "lexer.h"
#include "table.h"
#include <math.h>
#include <string.h>

static int failed;
static double sum(struct lexer *lexer);

static int accept(struct lexer *lexer, char sign) {
    if (lexer->token.kind != SIGN || lexer->token.sign != sign)
        return 0;
    next(lexer);
    return 1;
}

static double atom(struct lexer *lexer) {
    struct token token = lexer->token;
    if (token.kind == NUMBER) {
        next(lexer);
        return token.number;
    }
    if (token.kind == NAME) {
        next(lexer);
        if (accept(lexer, '='))
            return *variable(token.name) = sum(lexer);
        return *variable(token.name);
    }
    if (accept(lexer, '-'))
        return -atom(lexer);
    if (accept(lexer, '(')) {
        double value = sum(lexer);
        failed |= !accept(lexer, ')');
        return value;
    }
    failed = 1;
    return 0;
}

static double power(struct lexer *lexer) {
    double base = atom(lexer);
    return accept(lexer, '^') ? pow(base, power(lexer)) : base;
}

static double product(struct lexer *lexer) {
    double value = power(lexer);
    for (;;) {
        if (accept(lexer, '*'))
            value *= power(lexer);
        else if (accept(lexer, '/'))
            value /= power(lexer);
        else
            return value;
    }
}

static double sum(struct lexer *lexer) {
    double value = product(lexer);
    for (;;) {
        if (accept(lexer, '+'))
            value += product(lexer);
        else if (accept(lexer, '-'))
            value -= product(lexer);
        else
            return value;
    }
}

int evaluate(const char *text, double *result) {
    struct lexer lexer = {text, {END, 0, "", 0}};
    failed = 0;
    next(&lexer);
    do
        *result = sum(&lexer);
    while (accept(&lexer, ';'));
    return failed || lexer.token.kind != END;
}
