// bandwidth measures copies by the copy engines with the CUDA driver alone, as a check on
// vmmbench --preset nvbandwidth.
//
//   bandwidth [MiB of a copy [samples]]
//
// It prints a report as vmmbench reads it, one JSON object a line: a case for copies from
// each device to the host, to it and within it, and for reads and writes between
// every two devices with peer access; also while copies go the other way, of twice the size
// with the host, by another stream whose time does not count. A sample is the time of one copy, the mean of 16
// that run one after the other, by the device's clock. They are queued while the stream
// waits for a word of the host's memory, so no call of the host is in the time. Before the
// samples one copy goes into memory that held something else, and every byte is compared.
#include <cuda.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

namespace {

void check(CUresult got, const char *call, int line) {
	if (got == CUDA_SUCCESS)
		return;
	const char *text = nullptr;
	if (cuGetErrorString(got, &text) != CUDA_SUCCESS || text == nullptr)
		text = "unknown error";
	std::fprintf(stderr, "bandwidth: line %d: %s: %s (%d)\n", line, call, text, static_cast<int>(got));
	std::exit(1);
}
#define CU(call) check((call), #call, __LINE__)

constexpr int warmUps = 3;
constexpr int copiesInSample = 16;
constexpr unsigned char poison = 0xa5;

// Gate holds a stream back until it is opened.
class Gate {
public:
	Gate() {
		CU(cuMemHostAlloc(reinterpret_cast<void **>(const_cast<unsigned **>(&word_)), sizeof *word_, CU_MEMHOSTALLOC_DEVICEMAP));
		*word_ = 0;
		CU(cuMemHostGetDevicePointer(&ptr_, const_cast<unsigned *>(word_), 0));
	}
	~Gate() { CU(cuMemFreeHost(const_cast<unsigned *>(word_))); }
	Gate(const Gate &) = delete;
	Gate &operator=(const Gate &) = delete;

	void shut(CUstream s) {
		count_++;
		CU(cuStreamWaitValue32(s, ptr_, count_, CU_STREAM_WAIT_VALUE_GEQ));
	}
	void open() { *word_ = count_; }

private:
	volatile unsigned *word_ = nullptr;
	CUdeviceptr ptr_ = 0;
	unsigned count_ = 0;
};

using Queue = std::function<void(CUstream)>; // queues one copy

// Load is copies that another stream makes meanwhile, in a context of its own.
struct Load {
	CUcontext ctx;
	Queue copy;
};

// measure returns the nanoseconds of one copy, for each sample. The stream is of the current
// context.
std::vector<double> measure(const Queue &copy, int samples, const Load *load = nullptr) {
	Gate gate;
	CUcontext ctx;
	CUstream stream, other = nullptr;
	CUevent begin, end;
	CU(cuCtxGetCurrent(&ctx));
	if (load) {
		CU(cuCtxSetCurrent(load->ctx));
		CU(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
		CU(cuCtxSetCurrent(ctx));
	}
	CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	CU(cuEventCreate(&begin, CU_EVENT_DEFAULT));
	CU(cuEventCreate(&end, CU_EVENT_DEFAULT));
	std::vector<double> list;
	for (int i = 0; i < warmUps + samples; i++) {
		gate.shut(stream);
		CU(cuEventRecord(begin, stream));
		if (load) {
			CU(cuCtxSetCurrent(load->ctx));
			CU(cuStreamWaitEvent(other, begin, 0));
			for (int k = 0; k < copiesInSample; k++)
				load->copy(other);
			CU(cuCtxSetCurrent(ctx));
		}
		for (int k = 0; k < copiesInSample; k++)
			copy(stream);
		CU(cuEventRecord(end, stream));
		gate.open();
		CU(cuEventSynchronize(end));
		if (load)
			CU(cuStreamSynchronize(other));
		float ms = 0;
		CU(cuEventElapsedTime(&ms, begin, end));
		if (i >= warmUps)
			list.push_back(static_cast<double>(ms) * 1e6 / copiesInSample);
	}
	CU(cuEventDestroy(begin));
	CU(cuEventDestroy(end));
	CU(cuStreamDestroy(stream));
	if (load)
		CU(cuStreamDestroy(other));
	return list;
}

std::string sizeName(size_t bytes) {
	const size_t mib = bytes >> 20;
	return mib % 1024 ? std::to_string(mib) + "MiB" : std::to_string(mib / 1024) + "GiB";
}

// print writes a case as a line of the report.
void print(const std::string &id, size_t bytes, const std::vector<double> &ns) {
	std::printf("{\"case\":{\"id\":\"%s\",\"axes\":{},\"unit\":\"GB/s\",\"bytes\":%zu,\"status\":\"passed\",\"reason\":null,\"samples_ns\":[", id.c_str(), bytes);
	for (size_t i = 0; i < ns.size(); i++)
		std::printf("%s%.3f", i ? "," : "", ns[i]);
	std::printf("],\"stats\":null,\"verify\":null,\"flags\":[\"gated\"]}}\n");
	std::fflush(stdout);
}

// compare ends the program if bytes differ.
void compare(const std::string &id, const unsigned char *got, const unsigned char *want, size_t n) {
	if (std::memcmp(got, want, n) == 0)
		return;
	size_t at = 0;
	while (got[at] == want[at])
		at++;
	std::fprintf(stderr, "bandwidth: %s: byte %zu is %#x, want %#x\n", id.c_str(), at, got[at], want[at]);
	std::exit(3);
}

struct Device {
	CUdevice id;
	CUcontext ctx;
};

// Buffers are what the cases copy between: pinned memory of the host.
struct Buffers {
	unsigned char *data = nullptr, *back = nullptr;
	size_t size;

	explicit Buffers(size_t n) : size(n) {
		CU(cuMemHostAlloc(reinterpret_cast<void **>(&data), n, CU_MEMHOSTALLOC_PORTABLE));
		CU(cuMemHostAlloc(reinterpret_cast<void **>(&back), n, CU_MEMHOSTALLOC_PORTABLE));
		unsigned long long x = 88172645463325252ULL; // xorshift64
		for (size_t i = 0; i < n; i++) {
			x ^= x << 13;
			x ^= x >> 7;
			x ^= x << 17;
			data[i] = static_cast<unsigned char>(x >> 32);
		}
	}
	~Buffers() {
		CU(cuMemFreeHost(data));
		CU(cuMemFreeHost(back));
	}
	Buffers(const Buffers &) = delete;
	Buffers &operator=(const Buffers &) = delete;
};

void once(const Queue &copy) {
	CUstream s;
	CU(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	copy(s);
	CU(cuStreamSynchronize(s));
	CU(cuStreamDestroy(s));
}

// one measures copies from the host to a device, back, and within it.
void one(const Device &d, const Buffers &host, int samples) {
	const size_t n = host.size;
	CUdeviceptr a, b, wide;
	void *wideHost;
	CU(cuCtxSetCurrent(d.ctx));
	CU(cuMemAlloc(&a, n));
	CU(cuMemAlloc(&b, n));
	CU(cuMemAlloc(&wide, 2 * n));
	CU(cuMemHostAlloc(&wideHost, 2 * n, CU_MEMHOSTALLOC_PORTABLE));
	const auto id = [&](const char *test) {
		return "nvbandwidth/" + std::string(test) + "/" + sizeName(n) + "/cuda:" + std::to_string(d.id) + "/cuMemAlloc";
	};

	const Queue up = [&](CUstream s) { CU(cuMemcpyHtoDAsync(a, host.data, n, s)); };
	const Queue down = [&](CUstream s) { CU(cuMemcpyDtoHAsync(host.back, a, n, s)); };
	const Queue within = [&](CUstream s) { CU(cuMemcpyDtoDAsync(b, a, n, s)); };
	const std::string names[] = {id("host_to_device_memcpy_ce"), id("device_to_host_memcpy_ce"), id("device_local_copy")};

	CU(cuMemsetD8(a, poison, n));
	std::memset(host.back, 0, n);
	CU(cuCtxSynchronize());
	once(up);
	once(down);
	compare(names[0], host.back, host.data, n);
	print(names[0], n, measure(up, samples));
	print(names[1], n, measure(down, samples));
	const Load loadDown{d.ctx, [&](CUstream s) { CU(cuMemcpyDtoHAsync(wideHost, wide, 2 * n, s)); }};
	const Load loadUp{d.ctx, [&](CUstream s) { CU(cuMemcpyHtoDAsync(wide, wideHost, 2 * n, s)); }};
	print(id("host_to_device_bidirectional_memcpy_ce"), n, measure(up, samples, &loadDown));
	print(id("device_to_host_bidirectional_memcpy_ce"), n, measure(down, samples, &loadUp));

	CU(cuMemsetD8(b, poison, n));
	std::memset(host.back, 0, n);
	CU(cuCtxSynchronize());
	once(within);
	CU(cuMemcpyDtoH(host.back, b, n));
	compare(names[2], host.back, host.data, n);
	print(names[2], n, measure(within, samples));
	CU(cuMemFree(a));
	CU(cuMemFree(b));
	CU(cuMemFree(wide));
	CU(cuMemFreeHost(wideHost));
}

// pair measures copies that from makes between its memory and that of to.
void pair(const Device &from, const Device &to, const Buffers &host, int samples) {
	const size_t n = host.size;
	const std::string pairName = "cuda:" + std::to_string(from.id) + "-cuda:" + std::to_string(to.id);
	int can = 0;
	CU(cuDeviceCanAccessPeer(&can, from.id, to.id));
	if (!can) {
		std::fprintf(stderr, "bandwidth: %s: no path\n", pairName.c_str());
		return;
	}
	CUdeviceptr mine, theirs, mine2, theirs2;
	CU(cuCtxSetCurrent(to.ctx));
	CU(cuCtxEnablePeerAccess(from.ctx, 0));
	CU(cuMemAlloc(&theirs, n));
	CU(cuMemAlloc(&theirs2, n));
	CU(cuMemcpyHtoD(theirs, host.data, n));
	CU(cuCtxSynchronize());
	CU(cuCtxSetCurrent(from.ctx));
	CU(cuCtxEnablePeerAccess(to.ctx, 0));
	CU(cuMemAlloc(&mine, n));
	CU(cuMemAlloc(&mine2, n));
	CU(cuMemsetD8(mine, poison, n));
	CU(cuCtxSynchronize());
	const auto id = [&](const char *way) {
		return "nvbandwidth/device_to_device_" + std::string(way) + "_ce/" + sizeName(n) + "/" + pairName + "/enable";
	};

	const Queue read = [&](CUstream s) { CU(cuMemcpyAsync(mine, theirs, n, s)); };
	const Queue write = [&](CUstream s) { CU(cuMemcpyAsync(theirs, mine, n, s)); };
	once(read);
	CU(cuMemcpyDtoH(host.back, mine, n));
	compare(id("memcpy_read"), host.back, host.data, n);
	print(id("memcpy_read"), n, measure(read, samples));
	CU(cuMemsetD8(theirs, poison, n));
	CU(cuCtxSynchronize());
	once(write);
	CU(cuMemcpyDtoH(host.back, theirs, n));
	compare(id("memcpy_write"), host.back, host.data, n);
	print(id("memcpy_write"), n, measure(write, samples));

	// nvbandwidth measures what comes from to: read by from, or written by to.
	const Queue back = [&](CUstream s) { CU(cuMemcpyAsync(theirs2, mine2, n, s)); };
	const Load readBack{to.ctx, back}, writeBack{from.ctx, back};
	print(id("bidirectional_memcpy_read"), n, measure(read, samples, &readBack));
	CU(cuCtxSetCurrent(to.ctx));
	print(id("bidirectional_memcpy_write"), n, measure(read, samples, &writeBack));
	CU(cuCtxSetCurrent(from.ctx));

	CU(cuMemFree(mine));
	CU(cuMemFree(mine2));
	CU(cuCtxDisablePeerAccess(to.ctx));
	CU(cuCtxSetCurrent(to.ctx));
	CU(cuMemFree(theirs));
	CU(cuMemFree(theirs2));
	CU(cuCtxDisablePeerAccess(from.ctx));
}

// number is an argument, or exit 2.
int number(const char *text) {
	char *end = nullptr;
	const long n = std::strtol(text, &end, 10);
	if (*text == 0 || *end != 0 || n < 1 || n > 1 << 20) {
		std::fprintf(stderr, "usage: bandwidth [MiB of a copy [samples]]\n");
		std::exit(2);
	}
	return static_cast<int>(n);
}

} // namespace

int main(int argc, char **argv) {
	const size_t size = static_cast<size_t>(argc > 1 ? number(argv[1]) : 512) << 20;
	const int samples = argc > 2 ? number(argv[2]) : 30;
	CU(cuInit(0));
	int count = 0;
	CU(cuDeviceGetCount(&count));
	std::vector<Device> devices(static_cast<size_t>(count));
	std::printf("{\"schema\":\"vmmbench/1\",\"run\":{\"command\":\"nvbandwidth\",\"args\":[],\"version\":\"bandwidth.cpp\",\"started\":\"\",\"seconds\":0,"
				"\"interrupted\":false,\"error\":null,\"measure\":null}}\n");
	for (int i = 0; i < count; i++) {
		Device &d = devices[static_cast<size_t>(i)];
		CU(cuDeviceGet(&d.id, i));
		CU(cuDevicePrimaryCtxRetain(&d.ctx, d.id));
		char name[256];
		CU(cuDeviceGetName(name, sizeof name, d.id));
		std::printf("{\"device\":{\"open\":\"cuda:%d\",\"name\":\"%s\"}}\n", i, name);
	}
	CU(cuCtxSetCurrent(devices[0].ctx));
	{
		const Buffers host(size);
		for (const Device &d : devices)
			one(d, host, samples);
		for (const Device &from : devices)
			for (const Device &to : devices)
				if (from.id != to.id)
					pair(from, to, host, samples);
		CU(cuCtxSetCurrent(devices[0].ctx));
	}
	for (const Device &d : devices)
		CU(cuDevicePrimaryCtxRelease(d.id));
	std::printf("{\"end\":{\"command\":\"nvbandwidth\",\"args\":[],\"version\":\"bandwidth.cpp\",\"started\":\"\",\"seconds\":0,\"interrupted\":false,"
				"\"error\":null,\"measure\":null}}\n");
	return 0;
}
