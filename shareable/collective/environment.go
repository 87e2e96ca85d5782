package collective

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"

	"github.com/cuvmm/cuvmm/vmm"
)

// Environment is what the environment says about the group that a process was started in.
type Environment struct {
	Rank, Size int
	// LocalRank is the ordinal of the device to open: the process's number on its host, from 0 on,
	// or 0 if the process has devices of its own. It has them if CUDA_VISIBLE_DEVICES lists one
	// device or, under srun, as many as SLURM_GPUS_PER_TASK says.
	LocalRank int
	// Address is host:port where rank 0 sends the group's identity to the others. It is empty in
	// a group of one, and if NCCL_COMM_ID is set, with which NCCL finds the others by itself.
	Address string
	// Launcher is what started the process: torchrun, mpirun, srun.
	Launcher string
}

// launcher is a program that starts groups: its name, the variables that it sets, those of them
// that all processes of a job have in common and no other job has, and the function that reads
// from them where rank 0 is.
type launcher struct {
	name              string
	rank, size, local string
	job               []string
	address           func(getenv func(string) string) (host string, tcpPort int, err error)
}

var launchers = []launcher{
	{"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", []string{"TORCHELASTIC_RUN_ID", "MASTER_PORT"}, fromMaster},
	{"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", []string{"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"}, fromMPI},
	{"mpirun", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", nil, fromMPI},
	{"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", []string{"SLURM_JOB_ID", "SLURM_STEP_ID"}, fromSlurm},
}

// findLauncher returns what has started this process.
func findLauncher(getenv func(string) string) (launcher, bool) {
	for _, l := range launchers {
		if getenv(l.rank) != "" && getenv(l.size) != "" && !l.isSlurms(getenv) {
			return l, true
		}
	}
	return launcher{}, false
}

// jobNumber is a number of this process's job: that of most others differs.
func jobNumber(getenv func(string) string) uint64 {
	l, _ := findLauncher(getenv)
	text := l.name
	for _, name := range l.job {
		text += " " + strconv.Quote(getenv(name))
	}
	return sumOf([]byte(text))
}

// addressVar is the variable with host:port of rank 0, whatever the launcher.
const addressVar = "CUVMM_GROUP_ADDRESS"

// FromEnvironment reads the variables of torchrun, mpirun (Open MPI, MPICH and what derives from
// it) or srun, the first in this order whose rank and size are set. A program that starts
// processes by itself sets those of torchrun: RANK, WORLD_SIZE and LOCAL_RANK. Without
// LOCAL_RANK it is 0. Rank 0 is reached at CUVMM_GROUP_ADDRESS, host:port, or else
//   - under torchrun at MASTER_ADDR, and the port after MASTER_PORT, which torchrun uses itself;
//   - under mpirun at MASTER_ADDR, too, or without it on this host if all processes are there;
//   - under srun at the first host of the step, and a port made of the job's and the step's
//     numbers, from 20,000 on.
//
// If the environment names no group, or one of these variables has no valid value, it returns
// vmm.ErrInvalid.
func FromEnvironment() (Environment, error) { return fromEnvironment(os.Getenv) }

func fromEnvironment(getenv func(string) string) (e Environment, err error) {
	l, ok := findLauncher(getenv)
	if !ok {
		return e, fmt.Errorf("%w: the environment names no group: RANK and WORLD_SIZE are not set, nor are mpirun's variables or srun's", vmm.ErrInvalid)
	}
	if e, err = l.read(getenv); err != nil {
		return e, fmt.Errorf("%w: the environment of %s: %w", vmm.ErrInvalid, l.name, err)
	}
	return e, nil
}

// isSlurms reports whether srun has set these variables, as it does with --mpi=pmi2, beside its
// own, which say more.
func (l launcher) isSlurms(getenv func(string) string) bool {
	return l.rank == "PMI_RANK" && getenv(l.local) == "" &&
		getenv(l.rank) == getenv("SLURM_PROCID") && getenv(l.size) == getenv("SLURM_STEP_NUM_TASKS")
}

func (l launcher) read(getenv func(string) string) (e Environment, err error) {
	e.Launcher = l.name
	for _, x := range []struct {
		name string
		to   *int
	}{{l.rank, &e.Rank}, {l.size, &e.Size}, {l.local, &e.LocalRank}} {
		text := getenv(x.name)
		if text == "" && x.name == l.local {
			continue
		}
		if *x.to, err = number(x.name, text); err != nil {
			return e, err
		}
	}
	if e.Rank >= e.Size {
		return e, fmt.Errorf("%s=%d, %s=%d", l.rank, e.Rank, l.size, e.Size)
	}
	if l.hasOwnDevices(getenv) {
		e.LocalRank = 0
	}
	if getenv("NCCL_COMM_ID") != "" || e.Size == 1 {
		return e, nil
	}
	if e.Address = getenv(addressVar); e.Address != "" {
		_, tcpPort, err := net.SplitHostPort(e.Address)
		if err == nil && tcpPort != "0" {
			_, err = net.LookupPort("tcp", tcpPort)
		}
		if err == nil && (tcpPort == "0" || tcpPort == "") {
			err = fmt.Errorf("%s=%q names no port", addressVar, e.Address)
		}
		return e, err
	}
	host, tcpPort, err := l.address(getenv)
	if err != nil {
		return e, fmt.Errorf("%w; %s=host:port says where rank 0 is", err, addressVar)
	}
	if tcpPort < 1 || tcpPort > 65535 {
		return e, fmt.Errorf("port %d", tcpPort)
	}
	e.Address = net.JoinHostPort(host, strconv.Itoa(tcpPort))
	return e, nil
}

// hasOwnDevices reports whether this process sees its own devices only, and not all that the
// processes of its host share. CUDA counts the devices that a process sees from 0 on. srun shows a
// task one device with --gpus-per-task=1 and with --gpu-bind=single:1, as do scripts under mpirun;
// with --gpus-per-task=2 it shows two. A step with --gpu-bind=none keeps SLURM_GPUS_PER_TASK of its
// job but sees all devices.
func (l launcher) hasOwnDevices(getenv func(string) string) bool {
	n := visibleDevices(getenv("CUDA_VISIBLE_DEVICES"))
	if l.name != "srun" || n <= 1 {
		return n == 1
	}
	perTask := getenv("SLURM_GPUS_PER_TASK") // 2 or a100:2
	return perTask[strings.LastIndexByte(perTask, ':')+1:] == strconv.Itoa(n)
}

// visibleDevices is how many devices CUDA_VISIBLE_DEVICES lists: numbers or UUIDs, up to the first
// that is none. If it is not set, all devices are visible, and the result is 0.
func visibleDevices(list string) (n int) {
	for name := range strings.SplitSeq(list, ",") {
		if name = strings.TrimSpace(name); name == "" || name[0] == '-' || name == "NoDevFiles" {
			break
		}
		n++
	}
	return n
}

// number parses a variable that is a rank, a size or a port.
func number(name, text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n > maxSize {
		return 0, fmt.Errorf("%s=%q is not a number from 0 to %d", name, text, maxSize)
	}
	return n, nil
}

// maxSize is more members than any group has.
const maxSize = 1 << 20

// fromMaster returns rank 0's host and port under torchrun.
func fromMaster(getenv func(string) string) (host string, tcpPort int, err error) {
	if host = getenv("MASTER_ADDR"); host == "" {
		return "", 0, errors.New("MASTER_ADDR is not set")
	}
	tcpPort, err = number("MASTER_PORT", getenv("MASTER_PORT"))
	return host, tcpPort + 1, err
}

// fromMPI returns rank 0's host and port under mpirun. It does not name the host of rank 0, so
// without MASTER_ADDR all processes have to be on one host.
func fromMPI(getenv func(string) string) (host string, tcpPort int, err error) {
	if getenv("MASTER_ADDR") != "" {
		return fromMaster(getenv)
	}
	for _, v := range [][2]string{{"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"}, {"PMI_SIZE", "MPI_LOCALNRANKS"}} {
		if all := getenv(v[0]); all != "" && all == getenv(v[1]) {
			return "127.0.0.1", firstPort + portOf(getenv("OMPI_MCA_ess_base_jobid"), getenv("PMI_ID"), strconv.Itoa(os.Getppid())), nil
		}
	}
	return "", 0, errors.New("MASTER_ADDR is not set, and there are several hosts")
}

// fromSlurm returns rank 0's host and port under srun.
func fromSlurm(getenv func(string) string) (host string, tcpPort int, err error) {
	list := getenv("SLURM_STEP_NODELIST")
	if list == "" {
		list = getenv("SLURM_JOB_NODELIST")
	}
	if host = firstHost(list); host == "" {
		return "", 0, fmt.Errorf("no host in SLURM_STEP_NODELIST=%q", list)
	}
	return host, firstPort + portOf(getenv("SLURM_JOB_ID"), getenv("SLURM_STEP_ID")), nil
}

const (
	firstPort = 20_000
	ports     = 10_000
)

// portOf returns a number below ports, the same for all processes of a job.
func portOf(names ...string) int { return int(sumOf([]byte(strings.Join(names, "."))) % ports) }

// firstHost returns the first host of a list as Slurm writes it: a,b or n[01-04,07],m2 or
// r[1-2]n[1-9].
func firstHost(list string) string {
	prefix, rest, bracket := strings.Cut(list, "[")
	if i := strings.IndexByte(prefix, ','); i >= 0 || !bracket {
		host, _, _ := strings.Cut(list, ",")
		return host
	}
	numbers, after, ok := strings.Cut(rest, "]")
	if !ok {
		return ""
	}
	end := strings.IndexAny(numbers, ",-")
	if end < 0 {
		end = len(numbers)
	}
	return firstHost(prefix + numbers[:end] + after) // which may have more brackets
}
