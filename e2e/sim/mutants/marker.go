package mutants

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// marker is a comment //guard:name in the production code, with the marked node: the outermost node that begins first on the
// line of the comment. If the line has no code, it is that node of the next line of code.
type marker struct {
	file   string
	source []byte
	files  *token.FileSet
	node   ast.Node
}

var markerComment = regexp.MustCompile(`^//guard:(\S*)$`)

var markerName = regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*$`)

// findMarkers returns the markers in the Go files below root, except in tests and in this package, by name.
// The error joins all comments without marked code and all repeated names.
func findMarkers(root string) (map[string]marker, error) {
	found := map[string]marker{}
	var faults []error
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch name := entry.Name(); {
		case err != nil:
			return err
		case entry.IsDir() && path != root && (strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_") || name == "testdata"):
			return filepath.SkipDir
		case entry.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		source, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(source, []byte("//guard:")) {
			return err
		}
		files := token.NewFileSet()
		parsed, err := parser.ParseFile(files, path, source, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, group := range parsed.Comments {
			for _, comment := range group.List {
				match := markerComment.FindStringSubmatch(comment.Text)
				if match == nil {
					continue
				}
				name, at := match[1], files.Position(comment.Pos())
				node := marked(files, parsed, source, comment, group)
				first, twice := found[name]
				switch {
				case !markerName.MatchString(name):
					faults = append(faults, fmt.Errorf("%s: marker %q: expected words of a-z and 0-9, joined by hyphens", at, name))
				case twice:
					faults = append(faults, fmt.Errorf("%s: marker %s is also in %s: names must be unique", at, name, first.file))
				case node == nil:
					faults = append(faults, fmt.Errorf("%s: marker %s: no code begins on its line or the next line", at, name))
				default:
					found[name] = marker{path, source, files, node}
				}
			}
		}
		return nil
	})
	return found, errors.Join(append(faults, err)...)
}

// marked returns the node that a comment marks, or nil.
func marked(files *token.FileSet, parsed *ast.File, source []byte, comment *ast.Comment, group *ast.CommentGroup) ast.Node {
	at := files.Position(comment.Pos())
	line := at.Line
	if alone := len(bytes.TrimSpace(source[at.Offset-at.Column+1:at.Offset])) == 0; alone {
		line = files.Position(group.End()).Line + 1
	}
	return firstOn(files, parsed, line)
}

// firstOn returns the outermost node that begins first on a line.
func firstOn(files *token.FileSet, parsed *ast.File, line int) (first ast.Node) {
	ast.Inspect(parsed, func(n ast.Node) bool {
		switch n.(type) {
		case nil, *ast.CommentGroup:
			return false
		case *ast.File:
			return true
		}
		if files.Position(n.Pos()).Line == line && (first == nil || n.Pos() < first.Pos()) {
			first = n
		}
		return true
	})
	return first
}

// edit is the change of a marked node. In the replacement, $ is the replaced code, $1 to $9 are its operands (see
// operandsOf), and $0 is the function of a call. An edit therefore names few identifiers, and renames seldom break it.
type edit struct {
	part part
	from string // only for textPart
	to   string
}

type part int

const (
	wholePart part = iota
	conditionPart
	valuePart
	textPart
)

// remove deletes the node: a statement, a case, a method, an element of a list.
func remove() edit { return edit{part: wholePart} }

// whole replaces the node; "f()\n$" inserts a statement before it.
func whole(to string) edit { return edit{wholePart, "", to} }

// condition replaces the condition of an if or a for, the expressions of a case, or the communication of a case of a select.
func condition(to string) edit { return edit{conditionPart, "", to} }

// value replaces the value that is assigned, returned, declared, called or stored under a key. For an if or a switch, this is
// the value of its first statement: the call in "if err := f(); err != nil".
func value(to string) edit { return edit{valuePart, "", to} }

// text replaces a text that occurs exactly once in the node. Use it only if no other edit fits.
func text(from, to string) edit { return edit{textPart, from, to} }

// apply returns the source of the marker's file with the edit. The result differs from the source and parses.
func (m marker) apply(e edit) ([]byte, error) {
	begin, end, operands, err := m.target(e)
	if err != nil {
		return nil, err
	}
	to := e.to
	if e.part != textPart {
		if to, err = m.expand(e.to, string(m.source[begin:end]), operands); err != nil {
			return nil, err
		}
	}
	if comma := bytes.TrimLeft(m.source[end:], " \t"); e == remove() && bytes.HasPrefix(comma, []byte(",")) {
		end = len(m.source) - len(comma) + 1 // remove the comma of a list element as well
	}
	planted := bytes.Join([][]byte{m.source[:begin], []byte(to), m.source[end:]}, nil)
	if bytes.Equal(planted, m.source) {
		return nil, errors.New("the edit changes nothing")
	}
	if _, err := parser.ParseFile(token.NewFileSet(), m.file, planted, parser.SkipObjectResolution); err != nil {
		return nil, fmt.Errorf("the edit does not parse: %w", err)
	}
	return planted, nil
}

// target returns where in the source the replaced code is, and its operands.
func (m marker) target(e edit) (begin, end int, operands []ast.Expr, err error) {
	begin, end = m.offset(m.node.Pos()), m.offset(m.node.End())
	var list []ast.Expr
	switch e.part {
	case wholePart:
		if x, ok := m.node.(ast.Expr); ok {
			list = []ast.Expr{x}
		}
		return begin, end, operandsOf(list), nil
	case textPart:
		if n := strings.Count(string(m.source[begin:end]), e.from); n != 1 {
			return 0, 0, nil, fmt.Errorf("text %q: expected once in the marked %T, found %d times", e.from, m.node, n)
		}
		begin += strings.Index(string(m.source[begin:end]), e.from)
		return begin, begin + len(e.from), nil, nil
	case conditionPart:
		if clause, ok := m.node.(*ast.CommClause); ok && clause.Comm != nil {
			return m.offset(clause.Comm.Pos()), m.offset(clause.Comm.End()), nil, nil
		}
		list = conditionOf(m.node)
	case valuePart:
		list = valueOf(m.node)
	}
	if len(list) == 0 || list[0] == nil {
		return 0, 0, nil, fmt.Errorf("the marked %T has no such part", m.node)
	}
	return m.offset(list[0].Pos()), m.offset(list[len(list)-1].End()), operandsOf(list), nil
}

func (m marker) offset(at token.Pos) int { return m.files.Position(at).Offset }

var hole = regexp.MustCompile(`\$\d?`)

func (m marker) expand(to, old string, operands []ast.Expr) (string, error) {
	var missing error
	return hole.ReplaceAllStringFunc(to, func(h string) string {
		if h == "$" {
			return old
		}
		i := int(h[1] - '0')
		if i >= len(operands) || operands[i] == nil {
			missing = fmt.Errorf("the replaced code has no operand %s", h)
			return h
		}
		return string(m.source[m.offset(operands[i].Pos()):m.offset(operands[i].End())])
	}), missing
}

func conditionOf(n ast.Node) []ast.Expr {
	switch n := n.(type) {
	case *ast.IfStmt:
		return []ast.Expr{n.Cond}
	case *ast.ForStmt:
		return []ast.Expr{n.Cond}
	case *ast.CaseClause:
		return n.List
	}
	return nil
}

func valueOf(n ast.Node) []ast.Expr {
	switch n := n.(type) {
	case *ast.AssignStmt:
		return n.Rhs
	case *ast.ReturnStmt:
		return n.Results
	case *ast.ExprStmt:
		return []ast.Expr{n.X}
	case *ast.DeferStmt:
		return []ast.Expr{n.Call}
	case *ast.GoStmt:
		return []ast.Expr{n.Call}
	case *ast.SendStmt:
		return []ast.Expr{n.Value}
	case *ast.RangeStmt:
		return []ast.Expr{n.X}
	case *ast.IfStmt:
		return valueOf(n.Init)
	case *ast.SwitchStmt:
		return valueOf(n.Init)
	case *ast.ForStmt:
		return valueOf(n.Init)
	case *ast.DeclStmt:
		return valueOf(n.Decl)
	case *ast.GenDecl:
		if len(n.Specs) == 1 {
			return valueOf(n.Specs[0])
		}
	case *ast.ValueSpec:
		return n.Values
	case *ast.KeyValueExpr:
		return []ast.Expr{n.Value}
	case ast.Expr:
		return []ast.Expr{n}
	}
	return nil
}

// operandsOf returns the expressions for $1 to $9. They depend on the replaced code:
//
//   - a list: its elements
//   - a binary operation: its operands, or all operands of a chain of one operator
//   - a unary operation: its operand
//   - a call: its arguments; $0 is its function
func operandsOf(list []ast.Expr) []ast.Expr {
	operands := []ast.Expr{nil}
	if len(list) != 1 {
		return append(operands, list...)
	}
	switch x := ast.Unparen(list[0]).(type) {
	case *ast.BinaryExpr:
		return append(operands, chain(x, x.Op)...)
	case *ast.UnaryExpr:
		return append(operands, x.X)
	case *ast.CallExpr:
		return append([]ast.Expr{x.Fun}, x.Args...)
	}
	return operands
}

func chain(x ast.Expr, op token.Token) []ast.Expr {
	if b, ok := x.(*ast.BinaryExpr); ok && b.Op == op {
		return append(chain(b.X, op), b.Y)
	}
	return []ast.Expr{x}
}

// apply plants a bug: it returns the modified source of the file that contains the marker.
func apply(markers map[string]marker, bug mutant) ([]byte, error) {
	at, ok := markers[bug.Marker]
	if !ok {
		return nil, fmt.Errorf("bug %q: no comment //guard:%s in the production code", bug.Name, bug.Marker)
	}
	planted, err := at.apply(bug.Edit)
	if err != nil {
		return nil, fmt.Errorf("bug %q at %s in %s: %w", bug.Name, bug.Marker, at.file, err)
	}
	return planted, nil
}

// checkLists reports all bugs that cannot be planted, repeated names, and markers without a bug.
func checkLists(markers map[string]marker, bugs []mutant) error {
	var faults []error
	names, used := map[string]bool{}, map[string]bool{}
	for _, bug := range bugs {
		if names[bug.Name] {
			faults = append(faults, fmt.Errorf("bug %q: name is not unique", bug.Name))
		}
		names[bug.Name], used[bug.Marker] = true, true
		if _, err := apply(markers, bug); err != nil {
			faults = append(faults, err)
		}
	}
	for name, at := range markers {
		if !used[name] {
			faults = append(faults, fmt.Errorf("%s: marker %s has no bug in list.go or guards_*.go", at.file, name))
		}
	}
	return errors.Join(faults...)
}
