package system

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/rest"

	"skiff/internal/client"
	"skiff/internal/cluster"
	"skiff/internal/config"
	"skiff/internal/kubelet/bootstrap"
	"skiff/internal/pki"
)

// adminSecrets connects to the API server as administrator. It returns the connection and the client of secrets.
func adminSecrets(c config.Token) (*rest.Config, client.Resource[*corev1.Secret], error) {
	connection, err := adminConnection(c.DataDir, c.Kubeconfig)
	if err != nil {
		return nil, client.Resource[*corev1.Secret]{}, err
	}
	remote, err := newClient(connection)
	if err != nil {
		return nil, client.Resource[*corev1.Secret]{}, err
	}
	return connection, client.For[*corev1.Secret](remote), nil
}

// CreateToken creates a token with which nodes or servers join, and writes it in the form of `skiff agent --token`.
func CreateToken(ctx context.Context, c config.Token, out io.Writer) error {
	connection, secrets, err := adminSecrets(c)
	if err != nil {
		return err
	}
	if err := rest.LoadTLSFiles(connection); err != nil {
		return err
	}
	// The first CA is the one that signs.
	cas, err := pki.ParseCertificates(connection.CAData)
	if err != nil || len(cas) == 0 {
		return errors.Join(errors.New("the kubeconfig has no CA with which a new node could verify the server"), err)
	}
	token := bootstrap.NewToken(bootstrap.HashOf(cas[0]))
	groups := c.Groups
	switch {
	case c.Server:
		groups = []string{cluster.ServerGroup}
	case len(groups) == 0:
		groups = []string{bootstrap.NodeGroup}
	}
	var expiration time.Time
	if c.TTL > 0 {
		expiration = time.Now().Add(c.TTL)
	}
	if _, err := secrets.Create(ctx, token.ToSecret(c.Description, groups, expiration), client.WriteOptions{}); err != nil {
		return fmt.Errorf("create the token: %w", err)
	}
	_, err = fmt.Fprintln(out, token)
	return err
}

// ListTokens writes the tokens of the cluster, without their secrets.
func ListTokens(ctx context.Context, c config.Token, out io.Writer) error {
	_, secrets, err := adminSecrets(c)
	if err != nil {
		return err
	}
	tokens, _, err := secrets.List(ctx, metav1.NamespaceSystem, client.Selector{Fields: fields.OneTermEqualSelector("type", string(bootstrap.SecretType))})
	if err != nil {
		return fmt.Errorf("list tokens: %w", err)
	}
	slices.SortFunc(tokens, func(a, b *corev1.Secret) int { return cmp.Compare(a.Name, b.Name) })
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "ID\tEXPIRES\tLEFT\tGROUPS\tDESCRIPTION")
	for _, secret := range tokens {
		text := func(key string) string { return string(secret.Data[key]) }
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", text("token-id"), cmp.Or(text("expiration"), "never"), timeLeft(text("expiration"), time.Now()),
			text("auth-extra-groups"), text("description"))
	}
	return w.Flush()
}

func timeLeft(expiration string, now time.Time) string {
	if expiration == "" {
		return "for ever"
	}
	end, err := time.Parse(time.RFC3339, expiration)
	if err != nil || !now.Before(end) {
		return "expired"
	}
	return end.Sub(now).Round(time.Second).String()
}

// DeleteTokens deletes tokens. Nodes that have joined with them are not affected.
func DeleteTokens(ctx context.Context, c config.Token, tokens []string, out io.Writer) error {
	_, secrets, err := adminSecrets(c)
	if err != nil {
		return err
	}
	for _, text := range tokens {
		id, err := bootstrap.IDOf(text)
		if err != nil {
			return err
		}
		if err := secrets.Delete(ctx, metav1.NamespaceSystem, bootstrap.SecretName(id), metav1.DeleteOptions{}); err != nil {
			return fmt.Errorf("delete token %s: %w", id, err)
		}
		fmt.Fprintln(out, "deleted", id)
	}
	return nil
}
