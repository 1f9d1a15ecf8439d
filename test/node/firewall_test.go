package node

import (
	"encoding/binary"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"skiff/test/cluster"
	"skiff/test/namespaces"
	"skiff/test/netns"
)

// setFirewall writes rules like those of ufw, or writes them again as `ufw reload` does: what is not explicitly accepted is dropped, also if it is
// forwarded. Accepted are packets of loopback and of connections, and those to some TCP ports. IPv6 is left alone.
func setFirewall(ports ...int) error {
	connection, err := nftables.New()
	if err != nil {
		return err
	}
	table := &nftables.Table{Name: "filter", Family: nftables.TableFamilyIPv4}
	connection.AddTable(table)
	connection.DelTable(table)
	connection.AddTable(table)
	accept := func(chain *nftables.Chain, match ...expr.Any) {
		connection.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: append(match, &expr.Counter{}, &expr.Verdict{Kind: expr.VerdictAccept})})
	}
	for name, hook := range map[string]*nftables.ChainHook{"input": nftables.ChainHookInput, "forward": nftables.ChainHookForward} {
		policy := nftables.ChainPolicyDrop
		base := connection.AddChain(&nftables.Chain{
			Name: strings.ToUpper(name), Table: table, Type: nftables.ChainTypeFilter, Hooknum: hook, Priority: nftables.ChainPriorityFilter, Policy: &policy,
		})
		for _, part := range []string{"ufw-before-", "ufw-after-", "ufw-reject-"} {
			chain := connection.AddChain(&nftables.Chain{Name: part + name, Table: table})
			connection.AddRule(&nftables.Rule{Table: table, Chain: base, Exprs: []expr.Any{&expr.Counter{}, &expr.Verdict{Kind: expr.VerdictJump, Chain: chain.Name}}})
			if part != "ufw-before-" {
				continue
			}
			accept(chain, &expr.Ct{Key: expr.CtKeySTATE, Register: 1},
				&expr.Bitwise{
					SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binary.NativeEndian.AppendUint32(nil, expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED), Xor: make([]byte, 4),
				},
				&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)})
			if name == "forward" {
				continue
			}
			accept(chain, &expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte("lo\x00")})
			for _, port := range ports {
				accept(chain, &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_TCP}},
					&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
					&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binary.BigEndian.AppendUint16(nil, uint16(port))})
			}
		}
	}
	return connection.Flush()
}

// removeFirewall removes the rules of setFirewall.
func removeFirewall() error {
	connection, err := nftables.New()
	if err != nil {
		return err
	}
	connection.DelTable(&nftables.Table{Name: "filter", Family: nftables.TableFamilyIPv4})
	return connection.Flush()
}

// TestHostFirewall checks that pods reach pods, Services and the cluster's DNS on hosts with a firewall that has open only the ports of API server and
// kubelet, and that the firewall protects the host from pods as before.
func TestHostFirewall(t *testing.T) {
	c, err := cluster.SkiffNode(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Stop()
	if err := c.AddNode(); err != nil {
		t.Fatal(err)
	}
	_, port, err := net.SplitHostPort(strings.TrimPrefix(c.URL, "https://"))
	if err != nil {
		t.Fatal(err)
	}
	apiServer, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	hosts := []netns.Namespace{{}, netns.At(c.Host(2).Network())}
	set := func() {
		t.Helper()
		for _, host := range hosts {
			if err := host.Do(func() error { return setFirewall(apiServer, 10250) }); err != nil {
				t.Fatal(err)
			}
		}
	}
	set()
	defer func() {
		if err := removeFirewall(); err != nil { // the other host is removed with its rules
			t.Error(err)
		}
	}()
	kubectl(t, c, webPod("a", "node-1")+webPod("b", "node-1")+webPod("c", "node-2")+`
apiVersion: v1
kind: Service
metadata: {name: open}
spec:
  type: NodePort
  selector: {app: c}
  ports: [{port: 80, targetPort: 8080, nodePort: 30779}]
`, "apply", "-f", "-")
	kubectl(t, c, "", "wait", "--for=condition=Ready", "pod/a", "pod/b", "pod/c", "--timeout=60s")
	for _, when := range []string{"after the start of pods", "after the firewall has written its rules again"} {
		t.Run(when, func(t *testing.T) { checkBehindFirewall(t, c, hosts[1]) })
		set()
	}
}

func checkBehindFirewall(t *testing.T, c *cluster.Cluster, other netns.Namespace) {
	ip := func(pod string) string { return kubectl(t, c, "", "get", "pod", pod, "-o", "jsonpath={.status.podIP}") }
	for _, pair := range [][2]string{{"a", "b"}, {"a", "c"}, {"c", "a"}} {
		for _, address := range []string{ip(pair[1]) + ":8080", pair[1] + ".default.svc.cluster.local"} {
			eventually(t, pair[0]+" reaches "+address, func() bool {
				out, err := kubectlCommand(c, "", "exec", pair[0], "--", "wget", "-q", "-T", "5", "-O", "-", "http://"+address+"/index.html")
				return err == nil && strings.TrimSpace(string(out)) == pair[1]
			})
		}
	}
	// The API server, by its Service, is on the host of the first pod and on another than that of the second.
	for _, pod := range []string{"a", "c"} {
		eventually(t, pod+" reaches the API server", func() bool {
			_, err := kubectlCommand(c, "", "exec", pod, "--", "nc", "-z", "-w", "5", "kubernetes.default.svc.cluster.local", "443")
			return err == nil
		})
	}
	// A node port of this host leads to a pod of the other one.
	eventually(t, "a node port answers", func() bool {
		return other.Do(func() error {
			connection, err := net.DialTimeout("tcp", namespaces.NodeAddress+":30779", 5*time.Second)
			if err != nil {
				return err
			}
			return connection.Close()
		}) == nil
	})
	listener, err := net.Listen("tcp", namespaces.NodeAddress+":0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	if out, err := kubectlCommand(c, "", "exec", "a", "--", "nc", "-z", "-w", "1", namespaces.NodeAddress, port); err == nil {
		t.Errorf("a pod reaches a closed port of the host: %s", out)
	}
	for _, node := range []string{"node-1", "node-2"} {
		out := kubectl(t, c, "", "get", "node", node, "-o", `jsonpath={.status.conditions[?(@.type=="NetworkUnavailable")].status}`)
		if out != "False" {
			t.Errorf("condition NetworkUnavailable of %s is %q", node, out)
		}
	}
}
