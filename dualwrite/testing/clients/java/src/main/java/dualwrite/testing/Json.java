package dualwrite.testing;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** JSON as maps, lists, strings, numbers, booleans and null, so that this module depends on no library. */
final class Json {
    private final String text;
    private int position;

    private Json(String text) {
        this.text = text;
    }

    static Object read(String text) {
        Json json = new Json(text);
        Object value = json.value();
        json.skipSpace();
        if (json.position < text.length()) {
            throw json.malformed();
        }
        return value;
    }

    static String write(Object value) {
        StringBuilder written = new StringBuilder();
        write(value, written);
        return written.toString();
    }

    private static void write(Object value, StringBuilder written) {
        if (value instanceof Map<?, ?> map) {
            String separator = "{";
            for (Map.Entry<?, ?> entry : map.entrySet()) {
                written.append(separator);
                quote(String.valueOf(entry.getKey()), written);
                written.append(':');
                write(entry.getValue(), written);
                separator = ",";
            }
            written.append(map.isEmpty() ? "{}" : "}");
        } else if (value instanceof Iterable<?> list) {
            String separator = "";
            written.append('[');
            for (Object element : list) {
                written.append(separator);
                write(element, written);
                separator = ",";
            }
            written.append(']');
        } else if (value == null || value instanceof Number || value instanceof Boolean) {
            written.append(value);
        } else {
            quote(value.toString(), written);
        }
    }

    private static void quote(String value, StringBuilder written) {
        written.append('"');
        for (char each : value.toCharArray()) {
            if (each == '"' || each == '\\') {
                written.append('\\').append(each);
            } else if (each < ' ') {
                written.append(String.format("\\u%04x", (int) each));
            } else {
                written.append(each);
            }
        }
        written.append('"');
    }

    private Object value() {
        skipSpace();
        switch (peek()) {
            case '{':
                return object();
            case '[':
                return list();
            case '"':
                return string();
            default:
                return literal();
        }
    }

    private Map<String, Object> object() {
        Map<String, Object> object = new LinkedHashMap<>();
        for (boolean more = begins('}'); more; more = continues('}')) {
            skipSpace();
            String name = string();
            skipSpace();
            expect(':');
            object.put(name, value());
        }
        return object;
    }

    private List<Object> list() {
        List<Object> list = new ArrayList<>();
        for (boolean more = begins(']'); more; more = continues(']')) {
            list.add(value());
        }
        return list;
    }

    private boolean begins(char end) {
        position++;
        skipSpace();
        if (peek() == end) {
            position++;
            return false;
        }
        return true;
    }

    private boolean continues(char end) {
        skipSpace();
        if (peek() == end) {
            position++;
            return false;
        }
        expect(',');
        return true;
    }

    private String string() {
        expect('"');
        StringBuilder read = new StringBuilder();
        while (peek() != '"') {
            char each = text.charAt(position++);
            read.append(each == '\\' ? escaped() : each);
        }
        position++;
        return read.toString();
    }

    private char escaped() {
        char kind = peek();
        position++;
        switch (kind) {
            case 'n':
                return '\n';
            case 't':
                return '\t';
            case 'r':
                return '\r';
            case 'b':
                return '\b';
            case 'f':
                return '\f';
            case 'u':
                position += 4;
                return (char) Integer.parseInt(text.substring(position - 4, position), 16);
            default:
                return kind;
        }
    }

    private Object literal() {
        int begin = position;
        while (position < text.length() && ",]} \n\r\t".indexOf(text.charAt(position)) < 0) {
            position++;
        }
        String literal = text.substring(begin, position);
        switch (literal) {
            case "null":
                return null;
            case "true":
                return true;
            case "false":
                return false;
            default:
                return number(literal);
        }
    }

    private Number number(String literal) {
        try {
            return literal.matches("-?\\d+") ? (Number) Long.valueOf(literal) : (Number) Double.valueOf(literal);
        } catch (NumberFormatException error) {
            throw malformed();
        }
    }

    private void skipSpace() {
        while (position < text.length() && Character.isWhitespace(text.charAt(position))) {
            position++;
        }
    }

    private char peek() {
        if (position >= text.length()) {
            throw malformed();
        }
        return text.charAt(position);
    }

    private void expect(char wanted) {
        if (peek() != wanted) {
            throw malformed();
        }
        position++;
    }

    private IllegalArgumentException malformed() {
        return new IllegalArgumentException("not JSON, at character " + position + ": " + text);
    }
}
