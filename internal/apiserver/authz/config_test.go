package authz

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestChain(t *testing.T) {
	ctx := context.Background()
	a := on(user("u"), "get", "pods", "n")
	say := func(d Decision, why string, err error) Authorizer { return sayer{d, why, err} }
	for _, test := range []struct {
		chain Chain
		want  Decision
		why   string
		err   string
	}{
		{Chain{}, NoOpinion, "", ""},
		{Chain{say(NoOpinion, "x", nil), say(Allow, "y", nil), say(Deny, "z", nil)}, Allow, "y", ""},
		{Chain{Named{"one", say(NoOpinion, "x", errors.New("e"))}, Named{"two", say(Deny, "z", nil)}, say(Allow, "y", nil)}, Deny, "z", ""},
		{Chain{Named{"one", say(NoOpinion, "x", errors.New("e"))}, Named{"two", say(NoOpinion, "", nil)}, Named{"three", say(NoOpinion, "y", errors.New("f"))}}, NoOpinion, "one: x\nthree: y", "[e, f]"},
		{Chain{Masters{}, Named{"alwaysdeny", AlwaysDeny{}}}, NoOpinion, "alwaysdeny: Everything is forbidden.", ""},
	} {
		got, why, err := test.chain.Authorize(ctx, a)
		if got != test.want || why != test.why || (err == nil) != (test.err == "") || err != nil && err.Error() != test.err {
			t.Errorf("%v: %v %q %v", test.chain, got, why, err)
		}
	}
	master := on(user("u", "system:masters"), "get", "pods", "n")
	if got, _, _ := (Chain{Masters{}, AlwaysDeny{}}).Authorize(ctx, master); got != Allow {
		t.Error("a member of system:masters is denied")
	}
	rules, err := Chain{Masters{}, Named{"a", AlwaysAllow{}}, Named{"n", NewNode(NewNodeGraph())}}.RulesFor(ctx, node("n"), "ns")
	if err == nil || !rules.Incomplete || len(rules.Resources) != 1 || len(rules.Paths) != 1 {
		t.Errorf("rules %+v, error %v", rules, err)
	}
	if got, _, _ := (AlwaysAllowPaths{"/healthz"}).Authorize(ctx, at(user("u"), "get", "/healthz")); got != Allow {
		t.Error("a public path is denied")
	}
}

type sayer struct {
	decision Decision
	why      string
	err      error
}

func (s sayer) Authorize(context.Context, *Attributes) (Decision, string, error) {
	return s.decision, s.why, s.err
}

func TestConfigValidate(t *testing.T) {
	for _, test := range []struct {
		config Config
		want   string
	}{
		{Config{Modes: []string{"Node", "RBAC"}}, ""},
		{Config{}, "at least one authorization-mode must be passed"},
		{Config{Modes: []string{"Magic"}}, `authorization-mode "Magic" is not a valid mode`},
		{Config{Modes: []string{"RBAC", "Node", "RBAC"}}, `authorization-mode ["RBAC" "Node" "RBAC"] has mode specified more than once`},
		{Config{Modes: []string{"ABAC"}}, "authorization-mode ABAC's authorization policy file not passed"},
		{Config{Modes: []string{"Webhook"}}, "authorization-mode Webhook's authorization config file not passed"},
		{Config{Modes: []string{"RBAC"}, PolicyFile: "x"}, "cannot specify --authorization-policy-file without mode ABAC"},
		{Config{Modes: []string{"RBAC"}, WebhookConfigFile: "x"}, "cannot specify --authorization-webhook-config-file without mode Webhook"},
		{Config{Modes: []string{"RBAC"}, File: "x"}, "--authorization-config can not be specified when --authorization-mode or --authorization-webhook-* flags are defined"},
		{Config{File: "x"}, ""},
	} {
		if err := test.config.Validate(); (err == nil) != (test.want == "") || err != nil && err.Error() != test.want {
			t.Errorf("%+v: %v", test.config, err)
		}
	}
}

func TestNewFromModes(t *testing.T) {
	policy := NewStaticPolicy(mustRead(t, "clusterrole a\n  get core pods\nclusterrolebinding a user:jane\nclusterrolebinding gone user:lost"))
	j := newWebhookServer(t, func(_ int, review map[string]any, w http.ResponseWriter) {
		spec := review["spec"].(map[string]any)
		if spec["user"] == "denied" {
			status(review, w, `"allowed":false,"denied":true,"reason":"never you"`)
			return
		}
		status(review, w, `"allowed":false,"reason":"dunno"`)
	})
	config := DefaultConfig()
	config.Modes, config.PolicyFile, config.WebhookConfigFile = []string{"Node", "Webhook", "RBAC", "ABAC"}, write(t, "abac", abacFile), j.kubeconfig(t)
	c, err := New(config, policy, testGraph(), slog.Default())
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		ask  *Attributes
		want Decision
		why  string
	}{
		{on(user("root", "system:masters"), "any", "thing", ""), Allow, ""},
		{on(node("n1"), "get", "secrets pull", "ns"), Allow, ""},
		{on(user("denied", "readers"), "get", "pods", "n"), Deny, "never you"},
		{on(user("jane"), "get", "pods", "n"), Allow, `RBAC: allowed by ClusterRoleBinding "a" of ClusterRole "a" to User "jane"`},
		{on(user("alice"), "get", "pods", "n"), Allow, ""},
		{on(node("n1"), "get", "secrets x", "ns"), NoOpinion, "node: no relationship found between node 'n1' and this object\ndefault: dunno\nabac: No policy matched."},
		{on(user("lost"), "get", "pods", "n"), NoOpinion, "default: dunno\nrbac: RBAC: clusterrole.rbac.authorization.k8s.io \"gone\" not found\nabac: No policy matched."},
	} {
		if got, why, err := c.Authorize(context.Background(), test.ask); got != test.want || why != test.why || err != nil {
			t.Errorf("%+v: %v %q %v", *test.ask, got, why, err)
		}
	}
	if c.RBAC() == nil {
		t.Error("no RBAC")
	}
	if _, err := c.RulesFor(context.Background(), user("jane"), "n"); err == nil || !strings.Contains(err.Error(), "webhook authorizer does not support") {
		t.Errorf("error %v", err)
	}
	config.PolicyFile = "/nowhere"
	if _, err := New(config, policy, testGraph(), slog.Default()); err == nil {
		t.Error("a policy file that does not exist is read")
	}
}

const configFile = `apiVersion: apiserver.config.k8s.io/v1
kind: AuthorizationConfiguration
authorizers:
- {type: Node, name: node}
- {type: RBAC, name: rbac}
`

const webhookConfig = `- type: Webhook
  name: judge
  webhook:
    timeout: 3s
    subjectAccessReviewVersion: v1
    matchConditionSubjectAccessReviewVersion: v1
    failurePolicy: Deny
    connectionInfo: {type: KubeConfigFile, kubeConfigFile: %s}
    matchConditions: [{expression: "request.user == 'asked'"}]
`

func TestConfigurationFile(t *testing.T) {
	for content, want := range map[string]string{
		configFile: "",
		strings.Replace(configFile, "v1", "v1beta1", 1):                              "",
		strings.Replace(configFile, "name: rbac", "name: other", 1):                  "expected name rbac for authorizer RBAC instead of other",
		strings.Replace(configFile, "type: RBAC", "type: Magic", 1):                  `authorizers[1].type: Unsupported value: "Magic"`,
		strings.Replace(configFile, "- {type: RBAC", "- {typo: RBAC", 1):             `unknown field "authorizers[1].typo"`,
		configFile + "- {type: Node, name: node2}\n":                                 `authorizers[2].type: Duplicate value: "Node"`,
		configFile + "- {type: Webhook, name: hook}\n":                               "authorizers[2].webhook: Required value: required when type=Webhook",
		configFile + fmt.Sprintf(webhookConfig, "relative"):                          `connectionInfo.kubeConfigFile: Invalid value: "relative": must be an absolute path`,
		"apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\n": "authorizers: Required value: at least one authorization mode must be defined",
		"apiVersion: v1\nkind: Pod\n":                                                "failed to load AuthorizationConfiguration from file",
	} {
		_, err := New(Config{File: write(t, "config.yaml", content)}, NewStaticPolicy(PolicyObjects{}), NewNodeGraph(), slog.Default())
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s\n%v, want %q", content, err, want)
		}
	}
}

func TestConfigurationReload(t *testing.T) {
	j := newWebhookServer(t, func(_ int, review map[string]any, w http.ResponseWriter) {
		status(review, w, `"allowed":true,"reason":"judged"`)
	})
	withHook := configFile + fmt.Sprintf(webhookConfig, j.kubeconfig(t))
	path := write(t, "config.yaml", configFile)
	c, err := New(Config{File: path}, NewStaticPolicy(PolicyObjects{}), NewNodeGraph(), slog.Default())
	if err != nil {
		t.Fatal(err)
	}
	allowed := func() bool {
		d, _, _ := c.Authorize(context.Background(), on(user("asked"), "get", "pods", "n"))
		return d == Allow
	}
	for _, step := range []struct {
		content string
		changed bool
		err     string
		allowed bool
	}{
		{configFile, false, "", false},
		{withHook, true, "", true},
		{"nonsense", false, "failed to load", true},
		{strings.Replace(withHook, "- {type: RBAC, name: rbac}\n", "", 1), false, "missing required types: [RBAC]", true},
		{withHook + "- {type: ABAC, name: abac}\n", false, "authorizer type ABAC is not allowed if it was not enabled at initial server startup", true},
		{configFile, true, "", false},
	} {
		if err := os.WriteFile(path, []byte(step.content), 0o600); err != nil {
			t.Fatal(err)
		}
		changed, err := c.reload()
		if changed != step.changed || (err == nil) != (step.err == "") || err != nil && !strings.Contains(err.Error(), step.err) || allowed() != step.allowed {
			t.Errorf("%s\nchanged %v, error %v, allowed %v", step.content, changed, err, allowed())
		}
	}
}

func TestRunReloadsConfiguration(t *testing.T) {
	path := write(t, "config.yaml", configFile)
	c, err := New(Config{File: path}, NewStaticPolicy(PolicyObjects{}), NewNodeGraph(), slog.Default())
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- c.Run(ctx) }()
		if err := os.WriteFile(path, []byte(strings.Replace(configFile, "- {type: RBAC, name: rbac}\n", "- {type: RBAC, name: rbac}\n# changed\n", 1)), 0o600); err != nil {
			t.Fatal(err)
		}
		before := c.chain.Load()
		time.Sleep(2 * reloadInterval)
		if c.chain.Load() == before {
			t.Error("the change was not reloaded")
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
