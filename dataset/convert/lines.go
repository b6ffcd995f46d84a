package convert

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// beginsWithObject reports whether a text begins with a JSON object. No CSV table does: a quotation mark is not valid after other
// characters of a cell.
func beginsWithObject(text *bufio.Reader) bool {
	start, _ := text.Peek(512) // its error comes again from the first read
	object, ok := bytes.CutPrefix(bytes.TrimLeft(start, " \t\r\n"), []byte("{"))
	object = bytes.TrimLeft(object, " \t\r\n")
	return ok && (bytes.HasPrefix(object, []byte(`"`)) || bytes.HasPrefix(object, []byte("}")))
}

// lineReader reads JSON lines as the rows of a table. The first row has the keys of the first object. The others have the values
// of each object in the order of these keys. Empty lines are skipped.
type lineReader struct {
	text  *bufio.Reader
	line  int // number of the line that was read, from 1
	keys  []string
	at    map[string]int // column of each key
	first []string       // values of the first object, until they are returned
	row   []string
	from  []int // number of the line from which each value in row is
}

func (r *lineReader) FieldPos(int) (line, column int) { return r.line, 1 }

func (r *lineReader) Read() ([]string, error) {
	if first := r.first; first != nil {
		r.first = nil
		return first, nil
	}
	line, err := r.next()
	if err != nil {
		return nil, err
	}
	if r.keys == nil {
		err = r.readFirst(line)
		return r.keys, err
	}
	if err := r.each(line, func(key, value string) error {
		i, known := r.at[key]
		switch {
		case !known:
			return fmt.Errorf("expected the keys of the first line, found %q", key)
		case r.from[i] == r.line:
			return fmt.Errorf("expected the key %q once, found it twice", key)
		}
		r.from[i], r.row[i] = r.line, value
		return nil
	}); err != nil {
		return nil, fmt.Errorf("line %d: %w", r.line, err)
	}
	for i, key := range r.keys {
		if r.from[i] != r.line {
			return nil, fmt.Errorf("line %d: expected the key %q, as in the first line, found none", r.line, key)
		}
	}
	return r.row, nil
}

// readFirst takes the keys and the values of the first object.
func (r *lineReader) readFirst(line []byte) error {
	r.at = map[string]int{}
	if err := r.each(line, func(key, value string) error {
		if _, known := r.at[key]; known {
			return fmt.Errorf("expected the key %q once, found it twice", key)
		}
		r.at[key] = len(r.keys)
		r.keys, r.first = append(r.keys, key), append(r.first, value)
		return nil
	}); err != nil {
		return fmt.Errorf("line %d: %w", r.line, err)
	}
	if len(r.keys) < 2 {
		return fmt.Errorf("line %d: expected features and a label, found the keys %q", r.line, r.keys)
	}
	r.row, r.from = make([]string, len(r.keys)), make([]int, len(r.keys))
	return nil
}

// next returns the next line that is not empty.
func (r *lineReader) next() ([]byte, error) {
	for {
		line, err := r.text.ReadBytes('\n')
		if len(line) == 0 {
			return nil, err
		}
		r.line++
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		if line = bytes.TrimSpace(line); len(line) > 0 {
			return line, nil
		}
	}
}

// each calls use with the keys and values of the object in a line.
func (r *lineReader) each(line []byte, use func(key, value string) error) error {
	d := json.NewDecoder(bytes.NewReader(line))
	d.UseNumber()
	if start, err := d.Token(); err != nil || start != json.Delim('{') {
		return fmt.Errorf("expected a JSON object, found %.40q", line)
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return notObject(err)
		}
		value, err := d.Token()
		if err != nil {
			return notObject(err)
		}
		text, err := cellOf(value)
		if err != nil {
			return fmt.Errorf("key %q: %w", key, err)
		}
		if err := use(fmt.Sprint(key), text); err != nil {
			return err
		}
	}
	if _, err := d.Token(); err != nil {
		return notObject(err)
	}
	if rest := bytes.TrimSpace(line[d.InputOffset():]); len(rest) > 0 {
		return fmt.Errorf("expected one JSON object, found %.40q after it", rest)
	}
	return nil
}

// notObject explains a syntax error.
func notObject(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("expected a whole JSON object in one line, found a part")
	}
	return fmt.Errorf("expected a JSON object: %w", err)
}

// cellOf returns a value as the text of a cell.
func cellOf(value json.Token) (string, error) {
	found := "null"
	switch value := value.(type) {
	case string:
		return value, nil
	case json.Number:
		return value.String(), nil
	case bool:
		if value {
			return "1", nil
		}
		return "0", nil
	case json.Delim:
		found = map[json.Delim]string{'{': "an object", '[': "an array"}[value]
	}
	return "", fmt.Errorf("expected a number, a text, true or false, found %s", found)
}
